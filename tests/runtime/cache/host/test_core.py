"""The HostMemory core without L3: grants, commits, leases, quarantine, the mirror."""

import pytest

from raydix.errors import AccountingError
from raydix.ids import LeaseId, LookupId
from raydix.runtime.cache.host.events import (
    FlushHost,
    FlushStorage,
    FromScheduler,
    SchedulerLost,
    Tick,
)
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    CommitPages,
    CopiesDrained,
    LeasePages,
    Lookup,
    ObjectStatus,
    PageSource,
    ReleaseLeases,
    ToHost,
)
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import make_key, make_keys
from tests.runtime.cache.host.host_world import ready_keys


def attached(num_pages: int = 64) -> HostScript:
    host = HostScript(num_pages)
    host.attach_scheduler()
    return host


def columns(pairs: list[tuple[int, int]]) -> dict[str, object]:
    return {
        "host_page_ids": int32_array(page for page, _ in pairs),
        "generations": int32_array(generation for _, generation in pairs),
    }


@pytest.mark.parametrize(
    ("num_pages", "stock"),
    [(3, 1), (4, 1), (108, 27), (256, 64), (260, 64), (512, 64), (520, 65), (4096, 512)],
)
def test_scheduler_is_stocked_with_a_quarter_of_few_pages_and_an_eighth_of_many(
    num_pages: int, stock: int
) -> None:
    host = attached(num_pages)
    assert len(host.granted) == stock
    host.commit(["a"])
    assert len(host.granted) == stock


def test_commit_publishes_and_enters_the_mirror() -> None:
    host = attached()
    [(page, _)] = host.commit(["a"])
    assert host.mirror == {make_key("a")[:16]}
    assert host.lease(1, ["a", "b"]) == [page]
    assert host.end.leased[1].generations[0].tolist() == [host.table[page]]
    host.release(1)
    assert host.stat("leases") == 0


def test_lookup_without_storage_says_l1_l2_and_not_found_at_once() -> None:
    host = attached()
    host.commit(["b", "d"])
    host.lookup("r", ["a", "b", "c", "d"], num_l1_pages=1)
    assert host.is_final("r")
    assert host.sources("r") == [
        PageSource.L1,
        PageSource.L2,
        PageSource.NOT_FOUND,
        PageSource.NOT_FOUND,
    ]
    assert host.stat("lookups") == 0


def test_lookup_keeps_the_head_of_its_chain_longest() -> None:
    host = attached(16)
    host.commit(range(12))
    host.lookup("r", range(12), num_l1_pages=12)
    assert host.sources("r") == [PageSource.L1] * 12
    host.commit(["x", "y", "z"])
    left = [name for name in range(12) if make_key(name)[:16] in host.mirror]
    assert left == list(range(len(left)))
    assert 0 < len(left) < 12


def test_chain_committed_together_loses_its_tail_first() -> None:
    host = attached(64)
    pairs = [host.granted.popleft() for _ in range(8)]
    host.say(CommitPages(keys=make_keys(range(8)), **columns(pairs)))
    for name in range(42):
        host.commit([f"x{name}"])
    left = [name for name in range(8) if make_key(name)[:16] in host.mirror]
    assert 0 < len(left) < 8
    assert left == list(range(len(left)))


def test_commit_of_a_ready_name_returns_the_page() -> None:
    host = attached()
    [(first, _)] = host.commit(["a"])
    host.commit(["a"])
    assert host.stat("duplicate_commits") == 1
    assert host.lease(1, ["a"]) == [first]


def test_stale_generation_is_ignored_and_counted() -> None:
    host = attached()
    page, generation = host.granted[0]
    host.say(CommitPages(keys=make_key("a"), **columns([(page, generation - 1)])))
    host.say(CommitPages(keys=make_key("a"), **columns([(page, generation + 1)])))
    host.say(CommitPages(keys=make_key("a"), **columns([(10**6, 1)])))
    assert host.stat("stale_pages") == 3
    assert host.mirror == set()
    host.commit(["a"])
    assert len(host.mirror) == 1


def test_committed_twice_counts_once() -> None:
    host = attached()
    pair = host.granted[0]
    host.commit(["a"])
    host.say(CommitPages(keys=make_key("b"), **columns([pair])))
    assert host.stat("stale_pages") == 1
    assert host.mirror == {make_key("a")[:16]}


def test_full_arena_under_lease_drops_new_pages_and_serves_on() -> None:
    host = attached(16)
    host.commit(range(12))
    assert len(host.lease(1, range(12))) == 12
    host.commit(["x", "y"])
    assert host.mirror == {make_key(name)[:16] for name in range(12)}
    assert len(host.granted) == 4
    host.release(1)
    host.lookup("r", range(12))
    assert host.sources("r") == [PageSource.L2] * 12


def test_leased_pages_survive_any_pressure() -> None:
    host = attached(16)
    host.commit(range(4))
    pages = host.lease(1, range(4))
    for name in range(100):
        host.commit([f"x{name}"])
        assert not {page for page, _ in host.granted} & set(pages)
    host.release(1)


def test_unknown_lease_is_an_accounting_error() -> None:
    host = attached()
    with pytest.raises(AccountingError, match="lease 5"):
        host.release(5)


def test_connection_that_replaces_another_unseen_counts_as_its_loss() -> None:
    host = attached(16)
    host.attach_scheduler()
    assert not host.granted
    host.say(CopiesDrained())
    assert len(host.granted) == 4


def test_whatever_an_earlier_connection_brings_is_dropped_and_counted() -> None:
    host = attached(16)
    first = host.scheduler
    assert first is not None
    [pair] = [host.granted[0]]
    host.lease(1, ["a"])
    host.attach_scheduler()
    late: list[ToHost] = [
        CopiesDrained(),
        CommitPages(keys=make_key("a"), **columns([pair])),
        LeasePages(lease_id=LeaseId(2), keys=make_key("a"), starts=(0,)),
        Lookup(lookup_id=LookupId(1), keys=make_key("a"), num_l1_pages=(0,)),
        ReleaseLeases(lease_ids=int32_array([1])),
    ]
    for message in late:
        host.tell(FromScheduler(first, message))
    host.tell(SchedulerLost(first))
    assert host.stat("stale_events") == len(late) + 1
    assert not host.granted
    assert host.stat("pages_quarantined") == 4
    assert host.num_undelivered == 0


def test_answer_is_for_the_connection_that_asked() -> None:
    host = attached(16)
    asking = host.scheduler
    assert asking is not None
    host.open_scheduler_link()
    host.tell(
        FromScheduler(asking, LeasePages(lease_id=LeaseId(1), keys=make_key("a"), starts=(0,)))
    )
    assert host.end.leased == {}
    assert host.num_undelivered == 1


def test_new_scheduler_gets_every_key_piece_by_piece_and_what_changes_meanwhile() -> None:
    host = HostScript(32, piece_pages=4)
    host.attach_scheduler()
    host.commit(range(20))
    host.attach_scheduler()
    assert len(host.mirror) == 4
    host.say(CopiesDrained())
    assert host.core.next_deadline_s() == host.now_s
    for name in range(20, 34):
        host.commit([name])
        host.tell(Tick())
        is_complete = host.mirror == {key[:16] for key in ready_keys(host.core._index, 0)}
    assert is_complete
    assert host.stat("pages_dropped") > 0
    assert host.core.next_deadline_s() is None


def test_flush_drops_what_nobody_reads() -> None:
    host = attached()
    host.commit(["a", "b", "c"])
    host.lease(1, ["a"])
    host.tell(FlushHost())
    assert host.mirror == {make_key("a")[:16]}
    host.tell(FlushStorage())
    assert host.flushed == [ObjectStatus.MISSING]
    host.release(1)


def test_flush_goes_on_piece_by_piece_and_is_answered_at_its_end() -> None:
    host = HostScript(64, piece_pages=4)
    host.attach_scheduler()
    host.commit(range(20))
    host.lease(1, range(2))
    host.tell(FlushHost())
    assert host.dropped == []
    host.commit(["ahead"])
    host.lease(2, [19])
    assert host.tick_while_due() == 5
    assert host.dropped == [18]
    assert host.stat("pages_flushed") == 18
    assert host.mirror == {make_key(name)[:16] for name in (0, 1, 19)}


def test_flush_asked_for_during_a_flush_starts_over_and_both_end_as_one() -> None:
    host = HostScript(64, piece_pages=4)
    host.attach_scheduler()
    host.commit(range(10))
    host.tell(FlushHost())
    host.tell(Tick())
    host.commit(["behind", "too"])
    host.tell(FlushHost())
    host.tick_while_due()
    assert host.mirror == set()
    assert host.dropped == [12]


def test_mirror_follows_the_index_under_pressure() -> None:
    host = attached(32)
    for name in range(200):
        host.commit([name % 50])
        assert host.mirror == {key[:16] for key in ready_keys(host.core._index, 0)}


def test_without_storage_nothing_is_ever_due() -> None:
    host = attached()
    host.commit(["a"])
    host.tell(Tick())
    assert host.core.next_deadline_s() is None
    assert host.core.is_drained


def test_stats_sum_to_the_arena() -> None:
    host = attached(64)
    host.commit(["a", "b"])
    stats = host.core.stats()
    by_state = [stats[f"pages_{name}"] for name in ("free", "filling", "ready", "quarantined")]
    assert by_state == [46, 16, 2, 0]
    assert stats["ready_bytes"] == 256
