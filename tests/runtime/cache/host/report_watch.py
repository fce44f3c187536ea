"""What lookups are told, against what the world has seen of their pages."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from raydix.ids import SchedulerName
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import PageSource, ReadObjects
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import make_key
from tests.runtime.cache.host.host_world import Name
from tests.runtime.cache.host.scheduler_end import SchedulerEnd


@dataclass(slots=True)
class _Watched:
    """One lookup, and what was so when it was asked."""

    asker: SchedulerEnd
    names: list[list[Name]]
    """Per group: group and key of each page."""
    was_ready: set[Name]
    num_mentions: dict[Name, int]
    end: int
    """The best one that the last report allows, or that L1 and L2 allowed at first."""
    l1: list[range]
    """Per group: the pages that L1 holds."""
    num_seen: int = 0
    is_disturbed: bool = False
    """L3 lost objects since."""


class ReportWatch:
    """Follows all Schedulers' lookups, with a naive model of where a prefix may end."""

    def __init__(self, host: HostScript, rule: PrefixRule) -> None:
        self._host = host
        self._rule = rule
        self._watched: dict[tuple[SchedulerName, str], _Watched] = {}
        self._objects: set[Name] = set()
        """What L3 held at the last look."""
        self._orders: set[int] = set()
        """The orders that were looked at."""
        self._read: set[Name] = set()

    def begin(self, request: str, chain: list[int], num_l1_pages: Sequence[int]) -> None:
        """A lookup is about to be asked."""
        index = self._host.core._index
        names = [[(group, make_key(name)) for name in chain] for group in range(index.num_groups)]
        ready = {name for each in names for name in each if index.find(*name) is not None}
        l1 = []
        for reach, num_l1 in zip(self._rule.reaches, num_l1_pages, strict=True):
            l1.append(range(0 if reach is None else max(0, num_l1 - reach), num_l1))
        asker = self._host.end
        mentions = {name: _mentions(asker, name) for each in names for name in each}
        watched = _Watched(asker, names, ready, mentions, 0, l1)
        watched.end = self._best_end(self._map(watched, ready))
        self._watched[asker.name, request] = watched

    def _map(self, watched: _Watched, there: Set[Name]) -> list[list[bool]]:
        """Per group and page, whether L1 has it or it is among these."""
        return [
            [place in l1 or name in there for place, name in enumerate(names)]
            for names, l1 in zip(watched.names, watched.l1, strict=True)
        ]

    def check(self, objects: Set[Name]) -> None:
        """Look at the reports and reads since the last call. L3 holds these objects."""
        self._watched = {
            (asker, request): watched
            for (asker, request), watched in self._watched.items()
            if request in watched.asker.lookup_ids
        }
        for (_, request), watched in self._watched.items():
            watched.is_disturbed |= not self._objects <= objects
            reports = watched.asker.progress.get(request, [])
            for report in reports[watched.num_seen :]:
                self._check_report(watched, report.sources)
            watched.num_seen = len(reports)

        self._objects = set(objects)
        for order in self._host.orders:
            if isinstance(order, ReadObjects) and order.batch_id not in self._orders:
                self._check_read([(order.group, key) for key in split_keys(order.keys)])
            self._orders.add(order.batch_id)

    def _check_report(self, watched: _Watched, sources: Sequence[bytes]) -> None:
        for names, codes in zip(watched.names, sources, strict=True):
            for name, code in zip(names, codes, strict=True):
                if code == PageSource.L2:
                    assert name in watched.was_ready, "a page was not in L2"
                if code == PageSource.L3:
                    assert self._has_been_ready(watched, name), "a page never came from L3"

        end = self._best_end(_here(sources))
        assert end >= watched.end, "what was reached is lost"
        watched.end = end

    def _check_read(self, names: list[Name]) -> None:
        """Each page of a window is read for an end that can be reached, as far as is known."""
        is_probe = len(names) == 1 and self._read.issuperset(names)
        self._read.update(names)
        if not is_probe and not any(each.is_disturbed for each in self._watched.values()):
            served = set().union(*map(self._reachable, self._watched.values()))
            assert served.issuperset(names), "a page is read for nothing"

    def _reachable(self, watched: _Watched) -> set[Name]:
        """The pages that some end needs of which everything is somewhere."""
        seen = {
            name for each in watched.names for name in each if self._has_been_ready(watched, name)
        }
        there = self._map(watched, seen | self._objects)
        needed: set[Name] = set()
        for end in range(len(there[0]) + 1):
            if self._can_end(there, end):
                for names, start in zip(watched.names, self._rule.starts(end), strict=True):
                    needed.update(names[start:end])
        return needed

    def _has_been_ready(self, watched: _Watched, name: Name) -> bool:
        num_mentions = _mentions(watched.asker, name)
        return name in watched.was_ready or num_mentions > watched.num_mentions[name]

    def _best_end(self, here: Sequence[Sequence[bool]]) -> int:
        return max(end for end in range(len(here[0]) + 1) if self._can_end(here, end))

    def _can_end(self, here: Sequence[Sequence[bool]], end: int) -> bool:
        starts = self._rule.starts(end)
        return all(all(each[start:end]) for each, start in zip(here, starts, strict=True))


def _mentions(asker: SchedulerEnd, name: Name) -> int:
    group, key = name
    return asker.num_mentions[group, key[:16]]


def _here(sources: Sequence[bytes]) -> list[list[bool]]:
    return [[code <= PageSource.L3 for code in codes] for codes in sources]
