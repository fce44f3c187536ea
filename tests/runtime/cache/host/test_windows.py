"""The HostMemory core with WINDOW groups: what is fetched, and where a chain ends."""

import pytest

from raydix.errors import ConfigError
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.messages.host import ObjectStatus, PageSource, Urgency
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import make_key
from tests.runtime.cache.host.windowed_host import (
    FULL,
    WINDOW,
    answer_questions,
    asked,
    reads,
    tiers,
    with_windows,
)


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
    assert [len(run) for run in host.end.leased[1].host_page_ids] == [8, 2]
    host.release(1)


def test_hint_fetches_the_same_windows() -> None:
    host = with_windows()
    host.store(range(8))
    host.store([2, 3, 5, 6], group=WINDOW)
    host.lookup("h", range(8), urgency=Urgency.HINT)
    host.answer_all()
    assert tiers(host, "h") == ["3333333.", ".....33."]
    assert host.stat("pages_staged") == 0


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
        order = [
            name for name in map(index.name, index.newest_first()) if name and name[0] == group
        ]
        assert order == [(group, make_key(name)) for name in (0, 1, "x")]


def test_chain_that_was_looked_up_counts_as_used_before_what_comes_next() -> None:
    host = with_windows(storage=None)
    host.commit([0, 1, "x"], FULL)
    host.lookup("r", range(2))
    host.commit(["y"], FULL)

    index = host.core._index
    order = [index.name(page) for page in index.newest_first()]
    assert order == [(FULL, make_key(name)) for name in ("y", 0, 1, "x")]


def test_settings_for_other_groups_than_the_arena_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="the arena has 2"):
        HostScript(num_slabs=2, page_sizes=(1, 1), rule=PrefixRule())
