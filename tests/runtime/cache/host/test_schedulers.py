"""The HostMemory core with several Schedulers: each has its own, and nobody else's is touched."""

import pytest

from raydix.errors import AccountingError
from raydix.ids import SchedulerName
from raydix.runtime.cache.host.events import ProcessExited, SchedulerEnded
from raydix.runtime.cache.host.schedulers import FormerArena
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import AbandonPages, CopiesDrained, PageSource
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import make_key
from tests.runtime.cache.host.scheduler_end import FIRST, SECOND
from tests.runtime.cache.host.test_core import columns

L2, L3 = PageSource.L2, PageSource.L3


def attached_both(num_pages: int = 64) -> HostScript:
    """Two Schedulers are attached, and it is the first one's turn."""
    host = HostScript(num_pages)
    for name in (SECOND, FIRST):
        host.turn_to(name)
        host.attach_scheduler()
    return host


def both_with_storage() -> HostScript:
    """Two Schedulers and a storage actor are attached, and it is the first one's turn."""
    host = with_storage()
    host.turn_to(SECOND)
    host.attach_scheduler()
    host.turn_to(FIRST)
    return host


def test_equal_lookup_numbers_are_told_apart() -> None:
    host = both_with_storage()
    host.store(range(4))
    host.lookup("r", range(4))
    host.turn_to(SECOND)
    host.lookup("r", ["x", "y", "z"])
    assert host.ends[FIRST].lookup_ids == host.ends[SECOND].lookup_ids
    host.cancel("r")
    assert host.sources("r") == [PageSource.CANCELLED] * 3
    host.turn_to(FIRST)
    host.answer_all()
    assert host.sources("r") == [L3] * 4


def test_equal_lease_numbers_are_told_apart() -> None:
    host = attached_both(16)
    host.commit(["a", "b"])
    [first] = host.lease(1, ["a"])
    host.turn_to(SECOND)
    [second] = host.lease(1, ["b"])
    host.release(1)
    assert host.core._index.num_readers_of(first) == 1
    assert host.core._index.num_readers_of(second) == 0


def test_every_mirror_gets_all_changes() -> None:
    host = attached_both(16)
    host.commit(["a"])
    host.turn_to(SECOND)
    host.commit(range(20))
    assert host.ends[FIRST].mirror_of == host.ends[SECOND].mirror_of
    assert make_key(19)[:16] in host.mirror


def test_lost_scheduler_leaves_the_other_one_what_it_has() -> None:
    host = both_with_storage()
    host.store(range(4))
    host.commit(["a"])
    host.lease(1, ["a"])
    granted = list(host.granted)
    host.lookup("r", range(4))
    host.turn_to(SECOND)
    host.lease(1, ["a"])
    host.lookup("r", range(2))
    host.lose_scheduler()
    assert host.stat("pages_quarantined") == 8
    assert host.stat("leases") == 1
    assert host.stat("lookups") == 1
    host.turn_to(FIRST)
    assert list(host.granted)[: len(granted)] == granted
    host.answer_all()
    assert host.sources("r") == [L3] * 4
    host.release(1)


def test_read_that_both_wait_for_goes_on_for_the_other_one_and_is_cancelled_after_it() -> None:
    host = both_with_storage()
    host.store(range(8))
    host.lookup("r", range(4))
    host.turn_to(SECOND)
    host.lookup("r", range(4))
    host.answer()
    host.answer()
    host.turn_to(FIRST)
    host.lose_scheduler()
    assert host.cancelled == []
    host.turn_to(SECOND)
    host.lose_scheduler()
    assert host.cancelled == [order.batch_id for order in host.orders]
    host.answer_all()
    assert host.stat("pages_staged") == 0


def test_pages_that_are_staged_for_both_stay_until_neither_wants_them() -> None:
    host = both_with_storage()
    host.store(range(4))
    for name in (FIRST, SECOND):
        host.turn_to(name)
        host.lookup("r", range(4))
    host.answer_all()
    host.lose_scheduler()
    assert host.stat("pages_staged") == 4
    host.turn_to(FIRST)
    host.cancel("r")
    assert host.stat("pages_staged") == 0


def test_scheduler_that_connects_again_replaces_itself_alone() -> None:
    host = attached_both(32)
    host.commit(["a"])
    host.turn_to(SECOND)
    kept = list(host.granted)
    host.turn_to(FIRST)
    host.attach_scheduler()
    assert not host.granted
    assert list(host.ends[SECOND].granted_of[0])[: len(kept)] == kept
    host.say(CopiesDrained())
    assert host.granted


def test_drained_copies_of_one_scheduler_end_no_quarantine_of_another() -> None:
    host = attached_both(32)
    host.lose_scheduler()
    num_quarantined = host.stat("pages_quarantined")
    assert num_quarantined
    host.turn_to(SECOND)
    host.say(CopiesDrained())
    assert host.stat("pages_quarantined") == num_quarantined
    host.turn_to(FIRST)
    host.attach_scheduler()
    host.say(CopiesDrained())
    assert host.stat("pages_quarantined") == 0


def test_process_that_exits_lets_go_of_what_either_abandoned() -> None:
    host = attached_both(32)
    for name in (FIRST, SECOND):
        host.turn_to(name)
        lost = [host.granted.popleft()]
        host.say(AbandonPages(**columns(lost), lease_ids=int32_array([]), pids=(77,)))
    assert host.stat("pages_quarantined") == 2
    host.tell(ProcessExited(77))
    assert host.stat("pages_quarantined") == 0


def test_stock_is_shared_equally_once_what_was_granted_before_is_used_up() -> None:
    host = HostScript(256)
    host.attach_scheduler()
    assert len(host.granted) == 64
    host.turn_to(SECOND)
    host.attach_scheduler()
    assert len(host.granted) == 32
    host.turn_to(FIRST)
    host.commit(range(32))
    assert len(host.granted) == 32
    host.commit(range(32, 36))
    assert len(host.granted) == 32
    host.lose_scheduler()
    assert len(host.ends[SECOND].granted_of[0]) == 64


def test_however_many_schedulers_come_the_nth_stock_is_an_nth_at_most() -> None:
    host = HostScript(1024)
    for number in range(1, 9):
        host.turn_to(SchedulerName(f"engine {number}"))
        host.attach_scheduler()
        stocks = sorted((len(end.granted_of[0]) for end in host.ends.values()), reverse=True)
        assert all(stock <= 128 // place for place, stock in enumerate(stocks, 1))
    assert host.stat("pages_granted") <= 3 * 128


def test_even_the_smallest_share_is_a_page() -> None:
    host = HostScript(16)
    for number in range(4):
        host.turn_to(SchedulerName(f"engine {number}"))
        host.attach_scheduler()
        assert host.granted


def test_arena_taken_back_hands_out_nothing_before_all_have_drained() -> None:
    host = HostScript(16, former=FormerArena(int32_array(range(100, 116)), (FIRST, SECOND)))
    host.attach_scheduler()
    host.say(CopiesDrained())
    host.attach_scheduler()
    host.say(CopiesDrained())
    assert not host.granted
    host.turn_to(SECOND)
    host.attach_scheduler()
    assert not host.granted
    host.say(CopiesDrained())
    assert host.granted
    assert host.ends[FIRST].granted_of[0]


def test_former_user_that_has_not_drained_again_gets_nothing_while_a_newcomer_does() -> None:
    host = HostScript(16, former=FormerArena(int32_array(range(100, 116)), (FIRST,)))
    host.attach_scheduler()
    host.say(CopiesDrained())
    host.attach_scheduler()
    assert not host.granted
    host.turn_to(SECOND)
    host.attach_scheduler()
    assert host.granted
    host.turn_to(FIRST)
    host.say(CopiesDrained())
    assert host.granted


def test_arena_taken_back_does_not_wait_for_a_former_user_that_has_ended() -> None:
    host = HostScript(16, former=FormerArena(int32_array(range(100, 116)), (FIRST, SECOND)))
    host.attach_scheduler()
    host.say(CopiesDrained())
    assert not host.granted
    host.tell(SchedulerEnded(SECOND))
    assert host.granted


def test_page_that_is_granted_twice_is_an_accounting_error() -> None:
    host = attached_both(32)
    first, second = host.core._schedulers.attached
    [page_id, *_] = first.grants.page_ids()
    second.grants._pages[0].add(page_id)
    with pytest.raises(AccountingError, match=f"host page {page_id} is granted"):
        host.core.check()
