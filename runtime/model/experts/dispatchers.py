"""The dispatchers that there are, by the names that a configuration has for them."""

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import torch
from torch.distributed import FileStore, Store

from raydix.errors import ConfigError
from raydix.kernels.dispatch.token_inputs import ALIGNMENT_BYTES
from raydix.moe.dispatch.choose import winners
from raydix.moe.dispatch.fastest import FastestDispatcher
from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.libraries import connect_library
from raydix.moe.dispatch.library import find_library
from raydix.moe.dispatch.nccl import NcclDispatcher
from raydix.moe.dispatch.protocol import Dispatcher, DispatchShape
from raydix.moe.dispatch.store_group import StoreGroup
from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.model.collectives.meeting import (
    MEETING_TIMEOUT,
    exchange_places,
    peer_obstacle,
)
from raydix.runtime.model.experts.dispatch_room import BUFFER_ADVICE, room_obstacle

logger = logging.getLogger(__name__)
_NO_GPU = "the model does not run on GPUs"


def connect_dispatcher(
    backend: DispatchBackend | str,
    file: Path,
    rank: int,
    shape: DispatchShape,
    *,
    device: torch.device,
) -> Dispatcher:
    """Wait for the other ranks of a step group, and return what takes rows to their experts.

    `backend`: one of Raydix's own, or the name of a plugin.

    `file`: one that only these incarnations of the ranks name, and for this alone, in a folder that
    exists and that nobody else may enter. The calling thread is on `device`. Raises ConfigError, on
    every rank, if one of them lacks what the backend needs.
    """
    store = FileStore(str(file), shape.num_ranks)
    store.set_timeout(MEETING_TIMEOUT)
    match backend:
        case DispatchBackend.AUTO:
            return _connect_fastest(store, rank, shape, device)
        case DispatchBackend.GLOO:
            return GlooDispatcher(store, rank, shape)
        case DispatchBackend.NCCL:
            _require(None if device.type == "cuda" else _NO_GPU, backend)
            return NcclDispatcher(store, rank, shape, device)
        case DispatchBackend.SYMMETRIC:
            _require(None if device.type == "cuda" else _NO_GPU, backend)
            places = exchange_places(store, rank, shape.num_ranks, device)
            _require(_symmetric_obstacle(places, shape), backend)
            return _connect_symmetric(store, rank, shape, device)
        case DispatchBackend.DEEPEP | str():
            return connect_library(find_library(backend), store, rank, shape, device)
        case _:
            assert_never(backend)


def _connect_fastest(
    store: Store, rank: int, shape: DispatchShape, device: torch.device
) -> Dispatcher:
    """The dispatcher that needs no library of others. All ranks find the same."""
    if device.type == "cpu":
        return GlooDispatcher(store, rank, shape)
    places = exchange_places(store, rank, shape.num_ranks, device)
    if len({pid for pid, _ in places}) < shape.num_ranks:
        # Ranks that are threads: see `connect_nccl`.
        return GlooDispatcher(store, rank, shape)

    connects: dict[str, Callable[[Store, int, DispatchShape, torch.device], Dispatcher]] = {
        DispatchBackend.NCCL.value: NcclDispatcher
    }
    obstacle = _symmetric_obstacle(places, shape)
    if obstacle is None:
        connects[DispatchBackend.SYMMETRIC.value] = _connect_symmetric
    else:
        logger.warning("rank %d sends tokens by NCCL, which is slow: %s", rank, obstacle)
    return FastestDispatcher(
        {
            name: connects[name](store, rank, shape, device)
            for name in sorted(winners(connects, shape.num_ranks))
        }
    )


def _symmetric_obstacle(places: list[tuple[int, int]], shape: DispatchShape) -> str | None:
    """Why kernels cannot write other ranks' memory; None if they can. All ranks find the same."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if shape.hidden_size * shape.dtype.itemsize % ALIGNMENT_BYTES:
        return (
            f"a token of {shape.hidden_size} x {shape.dtype} is no multiple of {ALIGNMENT_BYTES} "
            "bytes"
        )
    return peer_obstacle({index for _, index in places}, shape.num_ranks)


def _require(obstacle: str | None, backend: str) -> None:
    if obstacle is not None:
        raise ConfigError(
            f"experts.dispatch is {backend}, but {obstacle}. Set experts.dispatch to auto."
        )


def require_room(store: Store, rank: int, shape: DispatchShape, free_bytes: int) -> None:
    """Raise ConfigError on every rank if the GPU of one lacks room for symmetric buffers.

    Else that one would end with an error of CUDA, and the others wait for it.
    """
    group = StoreGroup("room for buffers", store, rank, shape.num_ranks)
    for other, obstacle in enumerate(group.swap(room_obstacle(shape, free_bytes))):
        if obstacle is not None:
            advice = f"{BUFFER_ADVICE[0].upper()}{BUFFER_ADVICE[1:]}"
            raise ConfigError(f"{obstacle} (rank {other}). {advice}.")


def _connect_symmetric(
    store: Store, rank: int, shape: DispatchShape, device: torch.device
) -> Dispatcher:
    torch.cuda.empty_cache()
    require_room(store, rank, shape, torch.cuda.mem_get_info(device)[0])
    # Imported here: Triton is there on machines with a GPU alone.
    from raydix.moe.dispatch.symmetric import connect_symmetric

    return connect_symmetric(store, rank, shape, device)
