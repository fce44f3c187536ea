"""The dispatchers that there are, by the names that a configuration has for them."""

from pathlib import Path
from typing import assert_never

import torch
from torch.distributed import FileStore

from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.libraries import connect_library
from raydix.moe.dispatch.protocol import Dispatcher, DispatchShape
from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.model.collectives.meeting import MEETING_TIMEOUT


def connect_dispatcher(
    backend: DispatchBackend, file: Path, rank: int, shape: DispatchShape, *, device: torch.device
) -> Dispatcher:
    """Wait for the other ranks of a step group, and return what takes rows to their experts.

    `file`: one that only these incarnations of the ranks name, and for this alone, in a folder that
    exists and that nobody else may enter. The calling thread is on `device`. Raises ConfigError, on
    every rank, if one of them lacks what the backend needs.
    """
    store = FileStore(str(file), shape.num_ranks)
    store.set_timeout(MEETING_TIMEOUT)
    match backend:
        case DispatchBackend.AUTO | DispatchBackend.GLOO:
            return GlooDispatcher(store, rank, shape)
        case (
            DispatchBackend.DEEPEP
            | DispatchBackend.NIXL_EP
            | DispatchBackend.MOONCAKE_EP
            | DispatchBackend.MORI
        ):
            return connect_library(backend.value, store, rank, shape, device)
        case _:
            assert_never(backend)
