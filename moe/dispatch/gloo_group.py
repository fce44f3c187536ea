"""Groups of ranks on the cpu, over sockets of the loopback device.

Each rank holds a group object of its own, without torch's global state, so that the ranks may be
processes or threads of one.
"""

from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

OPERATION_TIMEOUT = timedelta(minutes=30)
"""The longest that a rank waits for its peers. A peer that ends is noticed at once; the Supervisor
finds one that hangs.
"""


def connect_gloo(store: Store, rank: int, size: int) -> ProcessGroupGloo:
    """Connect with the other ranks that share the store; waits for every one."""
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = OPERATION_TIMEOUT
    return ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
