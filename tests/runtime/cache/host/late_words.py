"""What a connection that is gone may still bring."""

from raydix.ids import ConnectionId
from raydix.runtime.cache.host.events import (
    FromScheduler,
    FromStorage,
    SchedulerLost,
    StorageLost,
)
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import CopiesDrained, DeleteObjects, ObjectsDone
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import make_key
from tests.runtime.cache.host.host_world import Copy


def bring_what_would_fit(host: HostScript, connection: ConnectionId) -> None:
    """An earlier connection brings what would be right if the present one did."""
    host.tell(FromScheduler(connection, CopiesDrained()))
    if host.granted:
        commit = Copy((0, make_key(0)), *host.granted[0]).commit
        host.tell(FromScheduler(connection, commit))

    for order in tuple(host.orders):
        num_objects = 1 if isinstance(order, DeleteObjects) else len(split_keys(order.keys))
        done = ObjectsDone(batch_id=order.batch_id, statuses=bytes(num_objects))
        host.tell(FromStorage(connection, done))

    host.tell(SchedulerLost(connection))
    host.tell(StorageLost(connection))
