"""Watches from outside that L2 drops the tails of chains before their heads."""

import itertools
from collections import Counter

from raydix.ids import BatchId, LookupId
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.messages.host import (
    KEY_BYTES,
    MIRROR_KEY_BYTES,
    AbandonPages,
    LeasePages,
    Lookup,
    LookupProgress,
    MirrorUpdate,
    ObjectStatus,
    ReadObjects,
    ReleaseLeases,
    WriteObjects,
)


class HeadDroppedFirst(AssertionError):
    """L2 dropped a page and kept a deeper one of the same chain that had not been used since."""


def _short_keys(keys: bytes) -> list[bytes]:
    return [keys[start : start + MIRROR_KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]


class TouchOrderWatch:
    """Follows one HostMemory's messages. A page's use counts with the chain whose lookup touched it
    last.

    Whatever else uses a page (commit, lease, write to L3) takes it out of its chain's order. Pages
    fetched from L3 are not followed: they may be pinned until they are leased.
    """

    def __init__(self) -> None:
        self._serial = itertools.count()
        self._ready: set[bytes] = set()
        self._uses: dict[bytes, int] = {}
        self._chains: dict[int, list[bytes]] = {}
        self._fetched: set[bytes] = set()
        self._pins: Counter[bytes] = Counter()
        self._lookups: dict[LookupId, list[bytes]] = {}
        self._leases: dict[int, list[bytes]] = {}
        self._writes: dict[BatchId, list[bytes]] = {}
        self._reads: dict[BatchId, list[bytes]] = {}

    def hears(self, event: host_events.HostEvent) -> None:
        """HostMemory is about to take this event."""
        match event:
            case host_events.SchedulerAttached():
                self._forget()
            case host_events.FromScheduler(_, Lookup() as lookup):
                self._lookups[lookup.lookup_id] = _short_keys(lookup.keys)
                self._touch(self._lookups[lookup.lookup_id])
            case host_events.FromScheduler(_, LeasePages() as lease):
                self._leases[lease.lease_id] = _short_keys(lease.keys)
                self._pin(self._leases[lease.lease_id])
            case host_events.FromScheduler(_, ReleaseLeases() as release):
                for lease_id in release.lease_ids:
                    self._unpin(self._leases.pop(lease_id))
            case host_events.FromScheduler(_, AbandonPages() as abandoned):
                for lease_id in abandoned.lease_ids:
                    del self._leases[lease_id]
            case host_events.FromStorage(_, done):
                self._unpin(self._writes.pop(done.batch_id, []))
                read = zip(self._reads.pop(done.batch_id, []), done.statuses, strict=False)
                self._fetched.update(key for key, code in read if code == ObjectStatus.OK)
            case host_events.StorageLost():
                self._writes.clear()
                self._reads.clear()
            case _:
                pass

    def says(self, effect: host_events.HostEffect) -> None:
        """HostMemory did this. Raises HeadDroppedFirst."""
        match effect:
            case host_events.ToScheduler(_, MirrorUpdate() as update):
                self._follow(update)
            case host_events.ToScheduler(_, LookupProgress(is_final=True) as report):
                self._touch(self._lookups.pop(report.lookup_id))
            case host_events.ToStorage(_, WriteObjects() as order):
                self._writes[order.batch_id] = _short_keys(order.keys)
                self._pin(self._writes[order.batch_id])
            case host_events.ToStorage(_, ReadObjects() as order):
                self._reads[order.batch_id] = _short_keys(order.keys)
            case _:
                pass

    def _forget(self) -> None:
        """Another Scheduler's link: what was dropped in between was told to nobody, and its leases
        stay pinned.
        """
        self._lookups.clear()
        self._leases.clear()
        self._ready.clear()
        self._uses.clear()
        self._chains.clear()

    def _touch(self, chain: list[bytes]) -> None:
        serial = next(self._serial)
        self._chains[serial] = chain
        for key in chain:
            if key in self._ready and key not in self._fetched and not self._pins[key]:
                self._uses[key] = serial

    def _pin(self, keys: list[bytes]) -> None:
        self._pins.update(keys)
        for key in keys:
            self._uses[key] = next(self._serial)

    def _unpin(self, keys: list[bytes]) -> None:
        self._pins.subtract(keys)
        for key in keys:
            self._uses[key] = next(self._serial)

    def _follow(self, update: MirrorUpdate) -> None:
        width = MIRROR_KEY_BYTES
        dropped = [
            update.dropped[start : start + width] for start in range(0, len(update.dropped), width)
        ]
        self._ready.difference_update(dropped)
        self._fetched.difference_update(dropped)
        for key in dropped:
            use = self._uses.pop(key, -1)
            chain = self._chains.get(use, [])
            deeper = chain[chain.index(key) + 1 :] if chain else []
            if any(other in self._ready and self._uses.get(other) == use for other in deeper):
                raise HeadDroppedFirst(
                    f"page {chain.index(key)} of a chain of {len(chain)} went before its tail"
                )
        for start in range(0, len(update.ready), width):
            key = update.ready[start : start + width]
            self._ready.add(key)
            self._uses[key] = next(self._serial)
