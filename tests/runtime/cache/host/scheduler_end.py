"""One Scheduler's end of its link to a scripted HostMemory."""

from collections import Counter, deque
from collections.abc import Mapping

from raydix.ids import ConnectionId, LookupId, SchedulerName
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    FromHost,
    LookupProgress,
    PagesGranted,
    PagesLeased,
    StorageStatus,
)
from raydix.runtime.messages.mirror import MirrorUpdate
from tests.runtime.cache.host.host_values import assert_follows

FIRST = SchedulerName("first")
SECOND = SchedulerName("second")


class SchedulerEnd:
    """Owns: what one Scheduler has asked and heard over its latest link.

    It counts its lookups alone, so other Schedulers use the same numbers.
    """

    def __init__(self, name: SchedulerName, num_groups: int) -> None:
        self.name = name
        self.num_groups = num_groups
        self.link: ConnectionId | None = None
        """The link, if it is open; the core may not know of the latest changes."""
        self.granted_of: list[deque[tuple[int, int]]] = [deque() for _ in range(num_groups)]
        self.mirror_of: list[set[bytes]] = [set() for _ in range(num_groups)]
        self.num_mentions: Counter[tuple[int, bytes]] = Counter()
        """How often each group's key was said to be READY or dropped."""
        self.num_lookups = 0
        self.lookup_ids: dict[str, LookupId] = {}
        """The last lookup of each name."""
        self.progress: dict[str, list[LookupProgress]] = {}
        self.leased: dict[int, PagesLeased] = {}
        self.asked: set[int] = set()
        """Leases that this connection asked for."""
        self.knows_storage: bool | None = None
        self.knows_answer_s = 0.0
        """What the Scheduler has heard of L3."""

    def open(self, link: ConnectionId) -> ConnectionId:
        """A link takes the place of the earlier one, over which nothing is heard any more."""
        self.link = link
        for granted, mirror in zip(self.granted_of, self.mirror_of, strict=True):
            granted.clear()
            mirror.clear()
        self.progress.clear()
        self.lookup_ids.clear()
        self.leased.clear()
        self.asked.clear()
        self.knows_storage = None
        return link

    def new_lookup(self, name: str) -> LookupId:
        """The number of a lookup that is about to be asked."""
        self.num_lookups += 1
        self.lookup_ids[name] = LookupId(self.num_lookups)
        self.progress.pop(name, None)
        return self.lookup_ids[name]

    def hear(self, message: FromHost, table: Mapping[int, int]) -> None:
        """HostMemory says something. `table`: the generations in the arena."""
        match message:
            case StorageStatus():
                self.knows_storage = message.is_in_use
                self.knows_answer_s = message.answer_s
            case PagesGranted():
                pairs = list(
                    zip(message.host_page_ids.tolist(), message.generations.tolist(), strict=True)
                )
                assert all(table[page] == generation for page, generation in pairs), (
                    "granted before the table"
                )
                self.granted_of[message.group].extend(pairs)
            case PagesLeased():
                assert message.lease_id in self.asked, (
                    "an answer that nobody asked for over this link"
                )
                self.leased[message.lease_id] = message
            case MirrorUpdate():
                self._hear_update(message)
            case LookupProgress():
                self._hear_progress(message)

    def _hear_update(self, message: MirrorUpdate) -> None:
        ready, dropped = split_keys(message.ready, 16), split_keys(message.dropped, 16)
        self.mirror_of[message.group].difference_update(dropped)
        self.mirror_of[message.group].update(ready)
        self.num_mentions.update((message.group, key) for key in (*ready, *dropped))

    def _hear_progress(self, message: LookupProgress) -> None:
        name = next(
            (name for name, lookup in self.lookup_ids.items() if lookup == message.lookup_id), None
        )
        assert name is not None, "an answer that nobody asked for over this link"
        reports = self.progress.setdefault(name, [])
        assert_follows(message, reports, self.num_groups)
        reports.append(message)
