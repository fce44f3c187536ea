"""How the ranks of a lane find each other: a file that all of them open, and loopback sockets."""

import logging
import os
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import FileStore, Store

from raydix.errors import ConfigError
from raydix.runtime.model.collectives.alone import Alone
from raydix.runtime.model.collectives.process_groups import GlooCollectives, NcclCollectives
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.collectives.symmetric_memory import SymmetricCollectives

logger = logging.getLogger(__name__)

MEETING_TIMEOUT = timedelta(minutes=10)
"""A rank that does not come is the Supervisor's to notice; this bounds a wait without one."""


def meet(
    file: Path | None, rank: int, size: int, *, device: torch.device, dtype: torch.dtype
) -> Collectives:
    """Wait for the other ranks of a lane, and return what connects this one with them.

    `file`: one that only these incarnations of the ranks name, in a folder that exists and that
    nobody else may enter; a lane of one rank needs none. `dtype`: that of most sums. On cuda the
    calling thread is on `device`.
    """
    if size == 1:
        return Alone()
    if file is None:
        raise ConfigError(
            f"rank {rank} of a lane of {size} has no file to meet the others by; expected one in "
            "the engine's private folder."
        )

    store = FileStore(str(file), size)
    store.set_timeout(MEETING_TIMEOUT)
    if device.type == "cpu":
        return GlooCollectives(store, rank, size)

    places = exchange_places(store, rank, size, device)
    if len({pid for pid, _ in places}) < size:
        # Ranks that are threads: see `NcclCollectives`.
        return GlooCollectives(store, rank, size)

    nccl = NcclCollectives(store, rank, size, device)
    obstacle = peer_obstacle({index for _, index in places}, size)
    if obstacle is not None:
        logger.warning(
            "rank %d sums by NCCL alone, which is slow for few tokens: %s", rank, obstacle
        )
        return nccl
    return SymmetricCollectives(store, nccl, device, dtype)


def exchange_places(
    store: Store, rank: int, size: int, device: torch.device
) -> list[tuple[int, int]]:
    """The process and the device of each rank."""
    store.set(f"place{rank}", f"{os.getpid()} {device.index}")
    places = [store.get(f"place{peer}").decode().split() for peer in range(size)]
    return [(int(pid), int(index)) for pid, index in places]


def peer_obstacle(devices: set[int], size: int) -> str | None:
    """Why ranks cannot map each other's memory; None if they can. All find the same answer."""
    if len(devices) < size:
        return f"{size} ranks share the devices {sorted(devices)}"
    if any(
        not torch.cuda.can_device_access_peer(one, other)
        for one in devices
        for other in devices - {one}
    ):
        return f"the devices {sorted(devices)} cannot access each other's memory"
    return None
