"""Watches from outside that L2 drops the tails of chains before their heads."""

import itertools
from collections import Counter, defaultdict

from raydix.ids import BatchId, ConnectionId, LeaseId, LookupId, UserId
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES, split_keys
from raydix.runtime.messages.host import (
    AbandonPages,
    LeasePages,
    Lookup,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    ReleaseLeases,
    WriteObjects,
)
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import PullPages
from raydix.runtime.messages.retention import EndUse


class HeadDroppedFirst(AssertionError):
    """L2 dropped a page and kept a deeper one of the same chain that had not been used since."""


_Batch = tuple[ConnectionId, BatchId]
_Name = tuple[int, bytes]
"""Group and short key."""


def _names(group: int, keys: bytes, start: int = 0) -> list[_Name]:
    """The names in one group of a chain's pages, from page `start` on."""
    places = range(start * KEY_BYTES, len(keys), KEY_BYTES)
    return [(group, keys[place : place + MIRROR_KEY_BYTES]) for place in places]


class TouchOrderWatch:
    """Follows one HostMemory. A page's use counts with the chain that was touched last.

    Whatever else uses a page (commit, lease, write to L3, the end of a request) takes it out of its
    chain's order. Pages fetched from L3 are not followed: they may be pinned until they are leased.
    Nor are those of a client's pin, which stays for a while and holds parts of a chain: of a window
    its pages alone. What one session alone has used ages as that session does, so pages are
    compared with those that the same users have had.
    """

    def __init__(self) -> None:
        self._serial = itertools.count()
        self._is_slab_lost = False
        self._ready: set[_Name] = set()
        self._uses: dict[_Name, int] = {}
        self._chains: dict[int, list[_Name]] = {}
        self._unfollowed: set[_Name] = set()
        self._users: defaultdict[_Name, set[UserId]] = defaultdict(set)
        """Who has looked each page up, or computed it."""
        self._pins: Counter[_Name] = Counter()
        self._lookups: dict[tuple[ConnectionId, LookupId], list[list[_Name]]] = {}
        """Per group: the chain's pages, by the connection that asked and its number."""
        self._leases: dict[tuple[ConnectionId, LeaseId], list[_Name]] = {}
        self._writes: dict[_Batch, list[_Name]] = {}
        self._reads: dict[_Batch, list[_Name]] = {}
        self._sent: dict[_Batch, list[_Name]] = {}
        """Pages that another node pulls."""

    def hears(self, event: host_events.HostEvent) -> None:
        """HostMemory is about to take this event."""
        self._is_slab_lost = False
        match event:
            case host_events.SchedulerAttached():
                self._forget()
            case host_events.FromScheduler(asker, Lookup() as lookup):
                groups = range(len(lookup.num_l1_pages))
                chains = [_names(group, lookup.keys) for group in groups]
                self._lookups[asker, lookup.lookup_id] = chains
                self._note_user(chains, lookup.user)
                self._touch(chains)
            case host_events.FromScheduler(asker, LeasePages() as lease):
                runs = [_names(group, lease.keys, at) for group, at in enumerate(lease.starts)]
                leased = self._leases[asker, lease.lease_id] = [
                    name for run in runs for name in run
                ]
                self._pin(leased)
            case host_events.FromScheduler(asker, ReleaseLeases() as release):
                for lease_id in release.lease_ids:
                    self._unpin(self._leases.pop((asker, lease_id), []))
            case host_events.FromScheduler(asker, AbandonPages() as abandoned):
                for lease_id in abandoned.lease_ids:
                    self._leases.pop((asker, lease_id), None)
            case host_events.FromScheduler(_, EndUse() as end):
                self._use(end.keys)
                groups = {group for group, _ in self._uses}
                self._note_user([_names(group, end.keys) for group in groups], end.user)
                self._forget_coming(end.user)
            case host_events.FromReader(reader, PullPages() as pull):
                self._sent[reader, pull.batch_id] = _names(pull.group, pull.keys)
                self._pin(self._sent[reader, pull.batch_id])
            case host_events.PagesSent(reader, batch_id):
                self._unpin(self._sent.pop((reader, batch_id)))
            case host_events.FromStorage(of, ObjectsDone() as done) | host_events.FromPeer(
                of, ObjectsDone() as done
            ):
                self._unpin(self._writes.pop((of, done.batch_id), []))
                read = zip(self._reads.pop((of, done.batch_id), []), done.statuses, strict=False)
                self._unfollowed.update(name for name, code in read if code == ObjectStatus.OK)
            case host_events.StorageLost(of):
                for batches in (self._writes, self._reads):
                    for batch in [each for each in batches if each[0] == of]:
                        del batches[batch]
            case _:
                pass

    def sees_slab_change_hands(self) -> None:
        """Note that a slab changes hands: heads of chains go with it, though tails stay."""
        self._is_slab_lost = True

    def says(self, effect: host_events.HostEffect) -> None:
        """HostMemory did this. Raises HeadDroppedFirst."""
        match effect:
            case host_events.ToScheduler(_, MirrorUpdate(source=0) as update):
                self._follow(update)
            case host_events.ToScheduler(asker, LookupProgress(is_final=True) as report):
                chains = self._lookups.pop((asker, report.lookup_id))
                self._touch(chains)
                for chain in chains:
                    self._stop_following(chain[: report.num_pinned_pages])
            case host_events.ToStorage(of, WriteObjects() as order):
                self._writes[of, order.batch_id] = _names(order.group, order.keys)
                self._pin(self._writes[of, order.batch_id])
            case host_events.ToStorage(of, ReadObjects() as order):
                self._reads[of, order.batch_id] = _names(order.group, order.keys)
            case _:
                pass

    def _forget(self) -> None:
        """Another link: nobody may have heard of drops in between; leases stay pinned."""
        self._ready.clear()
        self._uses.clear()
        self._chains.clear()

    def _note_user(self, chains: list[list[_Name]], user: UserId) -> None:
        for chain in chains:
            for name in chain:
                self._users[name].add(user)

    def _forget_coming(self, user: UserId) -> None:
        """Pages of an ended request that are committed only now come as nobody's."""
        for name, users in self._users.items():
            if name not in self._ready:
                users.discard(user)

    def _touch(self, chains: list[list[_Name]]) -> None:
        for chain in chains:
            serial = next(self._serial)
            self._chains[serial] = chain
            for name in chain:
                if name in self._ready and name not in self._unfollowed and not self._pins[name]:
                    self._uses[name] = serial

    def _use(self, keys: bytes) -> None:
        """Count the pages of these keys as used, each by itself, in whatever groups they are."""
        for group in {group for group, _ in self._uses}:
            for name in _names(group, keys):
                if name in self._uses:
                    self._uses[name] = next(self._serial)

    def _stop_following(self, names: list[_Name]) -> None:
        self._unfollowed.update(names)
        for name in names:
            self._uses[name] = next(self._serial)

    def _pin(self, names: list[_Name]) -> None:
        self._pins.update(names)
        for name in names:
            self._uses[name] = next(self._serial)

    def _unpin(self, names: list[_Name]) -> None:
        self._pins.subtract(names)
        for name in names:
            self._uses[name] = next(self._serial)

    def _follow(self, update: MirrorUpdate) -> None:
        dropped = [(update.group, key) for key in split_keys(update.dropped, MIRROR_KEY_BYTES)]
        self._ready.difference_update(dropped)
        self._unfollowed.difference_update(dropped)
        for name in dropped:
            use = self._uses.pop(name, -1)
            chain = self._chains.get(use, [])
            deeper = chain[chain.index(name) + 1 :] if chain and not self._is_slab_lost else []
            if any(self._goes_with(other, name, use) for other in deeper):
                raise HeadDroppedFirst(
                    f"page {chain.index(name)} of a chain of {len(chain)} went before its tail"
                )

        for key in split_keys(update.ready, MIRROR_KEY_BYTES):
            self._ready.add((update.group, key))
            self._uses[update.group, key] = next(self._serial)

    def _goes_with(self, other: _Name, name: _Name, use: int) -> bool:
        """Whether a page is there that was used last with a dropped one, and by the same users."""
        is_alike = self._users[other] == self._users[name]
        return is_alike and other in self._ready and self._uses.get(other) == use
