"""Groups of ranks on CUDA devices, by NCCL.

Each rank holds a group object of its own, without torch's global state, and has a process of its
own: a thread that loads a kernel waits for those of its device to end, and keeps the other threads
from starting what these wait for.
"""

from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import PrefixStore, Store

from raydix.moe.dispatch.gloo_group import OPERATION_TIMEOUT

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import ProcessGroupNCCL


def connect_nccl(store: Store, rank: int, size: int) -> "ProcessGroupNCCL":
    """Connect with the other ranks that share the store. They meet at their first operation."""
    # Imported here: only builds of torch for CUDA have it.
    from torch.distributed.distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = OPERATION_TIMEOUT
    return ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
