"""What a lookup comes to with any groups and any luck, against trying every end of its chain."""

import itertools
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import ObjectStatus, PageSource, ReadObjects
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE

PATIENT = replace(STORAGE, min_tokens=1, max_write_batches=0, breaker_failures=10_000)
MAX_PAGES = 10
PLACES = st.text("2333b.", min_size=MAX_PAGES, max_size=MAX_PAGES)
"""Where each page is: in L2; in L3; in L3 but it cannot be read; nowhere."""
GROUPS = st.lists(
    st.tuples(st.none() | st.integers(0, 4), PLACES, st.integers(0, 4)), min_size=1, max_size=3
)
"""Reach, places and pages in L1."""


@settings(max_examples=400)
@given(
    groups=GROUPS,
    length=st.integers(0, MAX_PAGES),
    apart=st.integers(1, 6),
    batch_pages=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_lookup_reaches_the_best_end_whose_pages_can_all_be_read(
    groups: list[tuple[int | None, str, int]],
    length: int,
    apart: int,
    batch_pages: int,
    order: random.Random,
) -> None:
    rule = PrefixRule(reaches=tuple(reach for reach, *_ in groups), checkpoint_pages=apart)
    num_l1 = tuple(min(pages, length) for *_, pages in groups)
    host = HostScript(
        256,
        replace(PATIENT, batch_pages=batch_pages),
        num_slabs=8,
        page_sizes=(1,) * len(groups),
        rule=rule,
    )
    host.attach_scheduler()
    host.attach_storage(50)

    tiers = []
    for group, (reach, places, _) in enumerate(groups):
        start = 0 if reach is None else max(0, num_l1[group] - reach)
        l1 = range(start, num_l1[group])
        tiers.append(["1" if place in l1 else places[place] for place in range(length)])
        for place in range(length):
            if places[place] == "2":
                host.commit([place], group)
        host.store([i for i in range(length) if places[i] == "3"], group=group)
        bad = [i for i in range(length) if places[i] == "b"]
        host.store(bad, ObjectStatus.BAD_CHECKSUM, group)

    host.lookup("r", range(length), num_l1)
    reads: list[set[int]] = [set() for _ in groups]
    while host.orders:
        done = host.answer(order.randrange(len(host.orders)))
        if isinstance(done, ReadObjects):
            names = (int(key.rstrip(b".")) for key in split_keys(done.keys))
            reads[done.group].update(names)

    assert host.is_final("r")
    found = [host.sources("r", group) for group in range(len(groups))]
    for codes, each in zip(found, tiers, strict=True):
        assert all(each[place] == "3" for place, code in enumerate(codes) if code == PageSource.L3)
    here = [["3" if code <= PageSource.L3 else "." for code in codes] for codes in found]
    assert _best_end(rule, here, "3") == _best_end(rule, tiers, "123")

    full = [each for each, reach in zip(tiers, rule.reaches, strict=True) if reach is None]
    known = host.end.progress["r"][-1].num_full_pages
    assert _reach(full, "123") <= known <= _reach(full, "123b")

    hoped = {end for end in range(length + 1) if _can_end(rule, tiers, end, "123b")}
    for places_read, reach in zip(reads, rule.reaches, strict=True):
        windows = {i for end in hoped for i in range(0 if reach is None else end - reach, end)}
        assert places_read <= windows, "a page was read that no end could need"


def _reach(full: list[list[str]], good: str) -> int:
    """How many first pages are good in all of these groups; 0 without any."""
    columns = zip(*full, strict=True)
    return len(list(itertools.takewhile(lambda places: set(places) <= set(good), columns)))


def _best_end(rule: PrefixRule, tiers: list[list[str]], good: str) -> int:
    return max(end for end in range(len(tiers[0]) + 1) if _can_end(rule, tiers, end, good))


def _can_end(rule: PrefixRule, tiers: list[list[str]], end: int, good: str) -> bool:
    starts = rule.starts(end)
    return all(set(each[start:end]) <= set(good) for each, start in zip(tiers, starts, strict=True))
