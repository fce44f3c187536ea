"""Groups of ranks on CUDA devices, by NCCL.

Each rank holds a group object of its own, without torch's global state, and has a process of its
own: a thread that loads a kernel waits for those of its device to end, and keeps the other threads
from starting what these wait for.
"""

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import PrefixStore, Store

from raydix.moe.dispatch.gloo_group import OPERATION_TIMEOUT

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import ProcessGroupNCCL

_CLEAN_END_S = 1.0


def connect_nccl(store: Store, rank: int, size: int) -> "ProcessGroupNCCL":
    """Connect with the other ranks that share the store. They meet at their first operation."""
    # Imported here: only builds of torch for CUDA have it.
    from torch.distributed.distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = OPERATION_TIMEOUT
    return ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)


def end_nccl(group: "ProcessGroupNCCL", wait_s: float = _CLEAN_END_S) -> None:
    """End a group, from any thread: none of its kernels waits for another rank any longer.

    The abort sets the flag that frees the kernels before anything else. Then it takes the
    communicators apart, and NCCL waits with that until no CUDA graph holds kernels of theirs.
    Graphs may live as long as the process, so no more than `wait_s` of that is waited for here.
    The group's lock is held until then, and another operation of it would wait, too: owners refuse
    operations before they call this. torch ends a process whose abort takes over 15 minutes.
    """
    # A daemon, so that the process can end before the graphs do. It keeps the group until then:
    # the destructor waits for the group's own threads.
    thread = threading.Thread(target=_abort, args=(group,), name="end of NCCL", daemon=True)
    thread.start()
    thread.join(wait_s)


def _abort(group: "ProcessGroupNCCL") -> None:
    # torch complains, once it has ended all the same, if that took longer than operations may.
    with suppress(RuntimeError):
        group.abort()
