"""Pages that somebody who is gone may still be copying: nobody gets them before that has ended."""

import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.host.events import (
    ProcessExited,
)
from raydix.runtime.cache.host.schedulers import FormerArena
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    AbandonPages,
    CommitPages,
    CopiesDrained,
    ProcessDrained,
)
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import make_key
from tests.runtime.cache.host.scheduler_end import FIRST
from tests.runtime.cache.host.test_core import attached, columns


def test_abandoned_pages_return_only_when_the_process_has_exited() -> None:
    host = attached(16)
    host.commit(["a"])
    leased = host.lease(1, ["a"])
    lost = list(host.granted)
    host.granted.clear()
    host.say(AbandonPages(**columns(lost), lease_ids=int32_array([1]), pids=(77,)))
    assert host.watched == [77]
    for name in range(40):
        host.commit([name])
    assert not {page for page, _ in host.granted} & {page for page, _ in lost}
    assert host.stat("pages_quarantined") == len(lost)
    assert host.lease(2, ["a"]) == leased
    host.say(CommitPages(keys=make_key("late"), **columns(lost[:1])))
    assert host.stat("stale_pages") == 1
    host.tell(ProcessExited(76))
    assert host.stat("pages_quarantined") == len(lost)
    host.tell(ProcessExited(77))
    assert host.stat("pages_quarantined") == 0


def test_grants_and_leases_of_a_lost_connection_wait_for_drained_copies() -> None:
    host = attached(16)
    host.commit(["a", "b"])
    leased = host.lease(1, ["a"])
    old = {page for page, _ in host.granted}
    host.lose_scheduler()
    host.attach_scheduler()
    assert host.mirror == {make_key("a")[:16], make_key("b")[:16]}
    assert not host.granted
    assert host.stat("pages_quarantined") == len(old)
    assert host.lease(2, ["a"]) == leased
    host.say(CopiesDrained())
    assert len(host.granted) == 4
    assert host.stat("pages_quarantined") == 0
    with pytest.raises(AccountingError, match="lease 1"):
        host.release(1)


def test_drained_copies_of_a_later_connection_end_the_quarantine_of_all_before() -> None:
    host = attached(16)
    for _ in range(3):
        host.attach_scheduler()
    assert host.stat("pages_quarantined") == 4
    host.say(CopiesDrained())
    assert host.stat("pages_quarantined") == 0


def test_abandoned_pages_of_a_process_that_lives_return_when_it_is_drained() -> None:
    host = attached(16)
    host.commit(["a"])
    host.lease(1, ["a"])
    lost = list(host.granted)
    host.granted.clear()
    host.say(AbandonPages(**columns(lost), lease_ids=int32_array([1]), pids=(77,)))
    assert host.stat("pages_quarantined") == len(lost)
    host.say(CopiesDrained())
    host.say(ProcessDrained(pid=76))
    assert host.stat("pages_quarantined") == len(lost)
    host.say(ProcessDrained(pid=77))
    assert host.stat("pages_quarantined") == 0
    assert host.core._index.num_readers == 0


def test_restarted_host_memory_hands_out_nothing_before_copies_are_drained() -> None:
    host = HostScript(16, former=FormerArena(int32_array(range(100, 116)), (FIRST,)))
    host.attach_scheduler()
    assert not host.granted
    host.say(CopiesDrained())
    assert all(generation == 101 + page for page, generation in host.granted)


@pytest.mark.parametrize("first", [ProcessExited(71), ProcessDrained(pid=71)])
@pytest.mark.parametrize("last", [ProcessExited(72), ProcessDrained(pid=72)])
def test_pages_of_a_rank_group_return_when_its_last_process_has_exited_or_drained(
    first: ProcessExited | ProcessDrained, last: ProcessExited | ProcessDrained
) -> None:
    host = attached(16)
    host.commit(["a"])
    host.lease(1, ["a"])
    lost = list(host.granted)
    host.granted.clear()
    host.say(AbandonPages(**columns(lost), lease_ids=int32_array([1]), pids=(71, 72)))
    assert host.watched == [71, 72]
    for end in (first, first, last):
        assert host.stat("pages_quarantined") == len(lost)
        assert host.core._index.num_readers == 1
        if isinstance(end, ProcessExited):
            host.tell(end)
        else:
            host.say(end)
    assert host.stat("pages_quarantined") == 0
    assert host.core._index.num_readers == 0


def test_process_that_drained_before_pages_were_abandoned_holds_these_all_the_same() -> None:
    host = attached(16)
    first, second = host.granted.popleft(), host.granted.popleft()
    host.say(AbandonPages(**columns([first]), lease_ids=int32_array([]), pids=(71, 72)))
    host.say(ProcessDrained(pid=71))
    host.say(AbandonPages(**columns([second]), lease_ids=int32_array([]), pids=(71, 72)))
    host.say(ProcessDrained(pid=72))
    assert host.stat("pages_quarantined") == 1
    host.say(ProcessDrained(pid=71))
    assert host.stat("pages_quarantined") == 0


def test_pages_abandoned_for_no_process_are_an_accounting_error() -> None:
    host = attached(16)
    with pytest.raises(AccountingError, match="no process"):
        host.say(AbandonPages(**columns([host.granted[0]]), lease_ids=int32_array([]), pids=()))
