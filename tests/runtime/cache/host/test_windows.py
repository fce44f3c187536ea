"""The HostMemory core with WINDOW groups: what is fetched, and where a chain ends."""

from dataclasses import replace

import pytest

from raydix.errors import ConfigError
from raydix.runtime.cache.host.events import RetireStorage, Tick
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import AskExists, ObjectStatus, PageSource, ReadObjects, Urgency
from tests.runtime.cache.host.host_script import STORAGE, HostScript, make_key

TIERS = {
    PageSource.L1: "1",
    PageSource.L2: "2",
    PageSource.L3: "3",
    PageSource.PENDING: "?",
    PageSource.NOT_FOUND: ".",
    PageSource.NO_WINDOW: ".",
    PageSource.IO_ERROR: "!",
    PageSource.BAD_OBJECT: "b",
    PageSource.TIMED_OUT: "t",
    PageSource.CANCELLED: "c",
    PageSource.NO_HOST_PAGE: "n",
    PageSource.BELOW_MIN_TOKENS: "m",
}
QUIET = replace(STORAGE, max_write_batches=0, max_read_batches=8)
FULL, WINDOW = 0, 1


def with_windows(
    *reaches: int | None,
    apart: int = 100,
    storage: StorageSettings | None = QUIET,
    num_pages: int = 240,
) -> HostScript:
    """By default a FULL group, and a WINDOW group that needs two pages."""
    reaches = reaches or (None, 2)
    host = HostScript(
        num_pages,
        storage,
        num_slabs=6,
        page_sizes=(1,) * len(reaches),
        rule=PrefixRule(reaches=reaches, checkpoint_pages=apart),
    )
    host.attach_scheduler()
    if storage is not None:
        host.attach_storage(50)
    return host


def tiers(host: HostScript, request: str = "r") -> list[str]:
    groups = range(host.num_groups)
    return ["".join(TIERS[source] for source in host.sources(request, group)) for group in groups]


def answer_questions(host: HostScript) -> None:
    while any(isinstance(order, AskExists) for order in host.orders):
        host.answer(next(i for i, o in enumerate(host.orders) if isinstance(o, AskExists)))


def reads(host: HostScript, group: int) -> list[int]:
    """Places of a group's pages that are being read; chains here begin at page 0."""
    orders = [o for o in host.orders if isinstance(o, ReadObjects) and o.group == group]
    return [int(key.rstrip(b".")) for order in orders for key in split_keys(order.keys)]


def asked(host: HostScript, group: int) -> list[int]:
    orders = [o for o in host.orders if isinstance(o, AskExists) and o.group == group]
    return [int(key.rstrip(b".")) for order in orders for key in split_keys(order.keys)]


def test_full_prefix_and_checkpoint_are_asked_about_together() -> None:
    host = with_windows()
    host.lookup("r", range(8))
    assert (asked(host, FULL), asked(host, WINDOW)) == (list(range(8)), list(range(8)))


def test_only_the_window_of_the_best_end_is_fetched() -> None:
    host = with_windows()
    host.store(range(10))
    host.store([2, 3, 6, 7, 9], group=WINDOW)
    host.lookup("r", range(10))
    answer_questions(host)
    assert (reads(host, FULL), reads(host, WINDOW)) == (list(range(8)), [6, 7])
    host.answer_all()
    assert tiers(host) == ["33333333..", "......33.."]
    assert host.is_final("r")


def test_windows_on_the_way_are_fetched_where_checkpoints_are_far_enough_apart() -> None:
    host = with_windows(apart=4)
    host.store(range(12))
    host.store([0, 1, 4, 5, 7, 8, 10, 11], group=WINDOW)
    host.lookup("r", range(12))
    answer_questions(host)
    assert reads(host, WINDOW) == [0, 1, 4, 5, 10, 11]


def test_nothing_is_fetched_where_no_window_is() -> None:
    host = with_windows()
    host.store(range(8))
    host.store([3, 5], group=WINDOW)
    host.lookup("r", range(8))
    host.answer_all()
    assert tiers(host) == ["........"] * 2
    assert host.stat("l3_reads_ok") == 0


def test_window_pages_that_l2_holds_far_apart_end_nothing() -> None:
    host = with_windows(storage=None)
    host.commit(range(6))
    host.commit([1, 3, 4], group=WINDOW)
    host.lookup("r", range(6))
    assert tiers(host) == ["222222", ".2.22."]


def test_l1_holds_the_pages_of_one_window() -> None:
    host = with_windows(storage=None)
    host.commit([0, 1, 5], group=WINDOW)
    host.lookup("r", range(6), num_l1_pages=(5, 4))
    assert tiers(host) == ["11111.", "2211.."]


def test_what_lies_before_the_window_in_l1_is_not_asked_about() -> None:
    host = with_windows()
    host.store(range(10))
    host.store(range(10), group=WINDOW)
    host.lookup("r", range(10), num_l1_pages=(6, 6))
    assert (asked(host, FULL), asked(host, WINDOW)) == ([6, 7, 8, 9], [6, 7, 8, 9])
    host.answer_all()
    assert tiers(host) == ["1111113333", "....11..33"]


def test_window_that_l1_has_lost_is_fetched_while_its_full_pages_stay_in_l1() -> None:
    host = with_windows()
    host.store([4, 5], group=WINDOW)
    host.lookup("r", range(8), num_l1_pages=(6, 0))
    host.answer_all()
    assert tiers(host) == ["111111..", "....33.."]


def test_failed_read_of_a_window_page_takes_away_the_ends_that_need_it() -> None:
    host = with_windows()
    host.store(range(10))
    host.store([2, 3, 6, 7], group=WINDOW)
    host.store([7], ObjectStatus.BAD_CHECKSUM, group=WINDOW)
    host.lookup("r", range(10))
    answer_questions(host)
    host.answer(next(i for i, o in enumerate(host.orders) if o.group == WINDOW))
    assert tiers(host) == ["????bbbb..", "..??..3b.."]
    assert reads(host, WINDOW) == [2, 3]
    host.answer_all()
    assert tiers(host) == ["3333bbbb..", "..33..3b.."]
    assert host.is_final("r")


def test_reads_of_full_pages_behind_the_next_best_end_are_cancelled() -> None:
    host = with_windows()
    host.store(range(12))
    host.store([2, 3, 10, 11], group=WINDOW)
    host.store([11], ObjectStatus.IO_ERROR, group=WINDOW)
    host.lookup("r", range(12))
    answer_questions(host)
    ordered = [order.batch_id for order in host.orders if order.group == FULL]
    host.answer(next(i for i, o in enumerate(host.orders) if o.group == WINDOW))
    assert host.cancelled == ordered[1:]
    host.answer_all()
    assert tiers(host) == ["3333!!!!!!!!", "..33......3!"]


def test_failed_full_page_falls_back_to_the_checkpoint_before_it() -> None:
    host = with_windows(apart=2)
    host.store(range(10))
    host.store([5], ObjectStatus.BAD_CHECKSUM)
    host.store([2, 3, 8, 9], group=WINDOW)
    host.lookup("r", range(10))
    host.answer_all()
    assert tiers(host) == ["33333bbbbb", "..33.bbbbb"]


def test_partial_arrival_ends_at_the_last_checkpoint_reached() -> None:
    host = with_windows(apart=4, storage=replace(QUIET, max_read_batches=1))
    host.store(range(12))
    host.store([2, 3, 6, 7, 10, 11], group=WINDOW)
    host.lookup("r", range(12))
    answer_questions(host)
    for _ in range(3):
        host.answer()
    assert tiers(host) == ["33333333????", "..33..33..??"]
    host.cancel("r")
    assert tiers(host)[FULL][:8] == "3" * 8
    assert tiers(host)[WINDOW][6:8] == "33"
    assert host.is_final("r")


def test_overdue_read_of_a_window_falls_back_like_a_failed_one() -> None:
    host = with_windows(storage=replace(QUIET, breaker_failures=9))
    host.store(range(6))
    host.commit([2, 3], group=WINDOW)
    host.store([4, 5], group=WINDOW)
    host.lookup("r", range(6))
    answer_questions(host)
    while any(order.group == FULL for order in host.orders):
        host.answer(next(i for i, o in enumerate(host.orders) if o.group == FULL))
    host.now_s += 100.0
    host.tell(Tick())
    assert tiers(host) == ["333333", "..22tt"]
    assert host.is_final("r")
    host.answer_all()


def test_object_of_a_window_that_is_known_missing_is_not_asked_for_again() -> None:
    host = with_windows()
    host.store(range(6))
    host.store([0, 1, 2, 4, 5], group=WINDOW)
    host.lookup("a", range(6))
    answer_questions(host)
    host.cancel("a")
    host.lookup("b", range(6))
    assert asked(host, WINDOW) == [0, 1, 2, 4, 5]
    assert host.stat("l3_pages_known_missing") == 1


def test_short_gain_is_computed_instead() -> None:
    host = with_windows()
    host.store(range(8))
    host.store(range(8), group=WINDOW)
    host.lookup("r", range(8), num_l1_pages=(7, 7))
    assert not host.orders
    assert tiers(host) == ["1111111m", ".....11m"]


def test_few_pages_of_a_window_are_fetched_if_a_long_prefix_hangs_on_them() -> None:
    host = with_windows(None, 1)
    host.commit(range(8))
    host.store([7], group=WINDOW)
    host.lookup("r", range(8))
    host.answer_all()
    assert tiers(host) == ["22222222", ".......3"]


def test_l3_that_is_not_used_leaves_what_l2_has() -> None:
    host = with_windows(storage=None)
    host.commit(range(4))
    host.commit([0, 1], group=WINDOW)
    host.lookup("r", range(6))
    assert tiers(host) == ["2222..", "22...."]
    assert host.is_final("r")


@pytest.mark.parametrize("ends", ["lost", "retired"])
def test_end_of_storage_leaves_the_last_checkpoint_reached(ends: str) -> None:
    host = with_windows(apart=4, storage=replace(QUIET, max_read_batches=2))
    host.store(range(8))
    host.store([2, 3, 6, 7], group=WINDOW)
    host.lookup("r", range(8))
    answer_questions(host)
    host.answer()
    host.answer()
    if ends == "lost":
        host.lose_storage()
    else:
        host.tell(RetireStorage())
    assert host.is_final("r")
    assert (tiers(host)[FULL][:4], tiers(host)[WINDOW][2:4]) == ("3333", "33")
    assert host.stat("lookups") == 0


def test_full_stage_of_windows_falls_back_to_a_window_that_is_here() -> None:
    host = with_windows(None, 8, num_pages=96)
    assert host.core._staged.max_pages == (24, 24)
    for name in ("a", "b", "c"):
        others = [f"{name}{place}" for place in range(8)]
        for place in range(0, 8, 4):
            host.commit(others[place : place + 4])
        host.store(others[: 4 if name == "c" else 8], group=WINDOW)
        host.lookup(name, others)
        host.answer_all()
    assert host.core._staged.num_left(WINDOW) == 4

    host.commit(range(6), group=WINDOW)
    host.store(range(16))
    host.store(range(8, 16), group=WINDOW)
    host.lookup("r", range(16))
    host.answer_all()
    assert tiers(host) == ["333333nnnnnnnnnn", "222222......nnnn"]
    assert host.stat("pages_reading") == 0
    assert host.stat("pages_staged") == 2 * 8 + 4 + 6


def test_only_what_a_request_will_lease_stays_pinned() -> None:
    host = with_windows(apart=4)
    host.store(range(12))
    host.store([2, 3, 6, 7, 10, 11], group=WINDOW)
    host.store([10], ObjectStatus.BAD_CHECKSUM, group=WINDOW)
    host.lookup("r", range(12))
    host.answer_all()
    host.tick_while_due()
    assert host.stat("pages_staged") == 8 + 2
    host.lease(1, range(8), 0, 6)
    assert host.stat("pages_staged") == 0
    assert [len(run) for run in host.leased[1].host_page_ids] == [8, 2]
    host.release(1)


def test_hint_fetches_the_same_windows() -> None:
    host = with_windows()
    host.store(range(8))
    host.store([2, 3, 5, 6], group=WINDOW)
    host.lookup("h", range(8), urgency=Urgency.HINT)
    host.answer_all()
    assert tiers(host, "h") == ["3333333.", ".....33."]
    assert host.stat("pages_staged") == 0


def test_shared_reads_of_a_window_fail_for_all_who_wait() -> None:
    host = with_windows()
    host.store(range(6))
    host.store([2, 3, 4, 5], group=WINDOW)
    host.store([5], ObjectStatus.IO_ERROR, group=WINDOW)
    for request in "ab":
        host.lookup(request, range(6))
    host.answer_all()
    for request in "ab":
        assert tiers(host, request) == ["333333", "...33!"]
        assert host.is_final(request)
    assert host.stat("l3_reads_ok") == 6 + 2


def test_model_of_windows_alone_is_looked_up_by_its_last_window() -> None:
    host = with_windows(2)
    host.store([2, 3, 6, 7])
    host.lookup("r", range(9))
    answer_questions(host)
    assert reads(host, 0) == [6, 7]
    host.answer_all()
    assert tiers(host) == ["......33."]


def test_full_pages_that_l3_has_say_that_a_window_is_missing() -> None:
    host = with_windows()
    host.store(range(6))
    host.lookup("r", range(6))
    host.answer_all()
    assert host.sources("r", FULL) == [PageSource.NO_WINDOW] * 6


def test_two_windows_end_together() -> None:
    host = with_windows(None, 1, 3)
    host.store(range(10))
    host.store([3, 5, 9], group=1)
    host.store(range(1, 7), group=2)
    host.lookup("r", range(10))
    host.answer_all()
    assert tiers(host) == ["333333....", ".....3....", "...333...."]


def test_window_of_one_token_needs_no_page() -> None:
    host = with_windows(None, 0)
    host.store(range(4))
    host.lookup("r", range(6))
    host.answer_all()
    assert tiers(host) == ["3333..", "......"]


def test_pages_of_a_chain_are_touched_in_every_group() -> None:
    host = with_windows(storage=None)
    for group in (FULL, WINDOW):
        host.commit([0, 1, "x"], group)
    host.lookup("r", range(2))
    # Whoever looked it up waits for a lease next, so it is touched behind that.
    host.tick_while_due()
    for group in (FULL, WINDOW):
        index = host.core._index
        order = [index.name(page) for page in index._evictable.items(group)]  # type: ignore[arg-type]
        assert order == [(group, make_key(name)) for name in ("x", 1, 0)]


def test_chain_that_was_looked_up_counts_as_used_before_what_comes_next() -> None:
    host = with_windows(storage=None)
    host.commit([0, 1, "x"], FULL)
    host.lookup("r", range(2))
    host.commit(["y"], FULL)

    index = host.core._index
    order = [index.name(page) for page in index._evictable.items(FULL)]  # type: ignore[arg-type]
    assert order == [(FULL, make_key(name)) for name in ("x", 1, 0, "y")]


def test_settings_for_other_groups_than_the_arena_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="the arena has 2"):
        HostScript(num_slabs=2, page_sizes=(1, 1), rule=PrefixRule())
