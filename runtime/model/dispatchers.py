"""The dispatchers that there are, by the names that a configuration has for them."""

from pathlib import Path
from typing import assert_never

from torch.distributed import FileStore

from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.protocol import Dispatcher, DispatchShape
from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.model.collectives.meeting import MEETING_TIMEOUT


def connect_dispatcher(
    backend: DispatchBackend, file: Path, rank: int, shape: DispatchShape
) -> Dispatcher:
    """Wait for the other ranks of a step group, and return what takes rows to their experts.

    `file`: one that only these incarnations of the ranks name, and for this alone, in a folder that
    exists and that nobody else may enter.
    """
    store = FileStore(str(file), shape.num_ranks)
    store.set_timeout(MEETING_TIMEOUT)
    match backend:
        case DispatchBackend.AUTO | DispatchBackend.GLOO:
            return GlooDispatcher(store, rank, shape)
        case _:
            assert_never(backend)
