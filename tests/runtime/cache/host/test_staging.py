"""The HostMemory core when many lookups share the room for pages from L3."""

from dataclasses import replace

import pytest

from raydix.errors import AccountingError
from raydix.ids import BatchId
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import ObjectsDone, PageSource, ReadObjects
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE

L2, L3 = PageSource.L2, PageSource.L3


def names_of(chain: str, num_pages: int) -> list[str]:
    return [f"{chain}{index}" for index in range(num_pages)]


def test_older_lookup_goes_first_even_if_its_question_is_answered_later() -> None:
    host = with_storage(64, replace(STORAGE, max_read_batches=1))
    host.store(names_of("a", 8) + names_of("b", 12))
    host.lookup("a", names_of("a", 8))
    host.lookup("b", names_of("b", 12))
    host.answer(1)
    host.answer()
    first_names = []
    while host.orders:
        order = host.answer()
        assert isinstance(order, ReadObjects)
        first_names.append(split_keys(order.keys)[0].rstrip(b".").decode())
    assert first_names == ["b0", "a0", "a4", "b4", "b8"]


def test_lookup_without_a_free_page_ends_and_one_that_is_made_anew_finds_room() -> None:
    host = with_storage(32)
    host.store(names_of("a", 12) + names_of("b", 12))
    host.lookup("a", names_of("a", 12))
    host.lookup("b", names_of("b", 12))
    host.answer_all()
    assert host.sources("a") == [L3] * 12
    assert host.sources("b") == [L3] * 4 + [PageSource.NO_HOST_PAGE] * 8
    host.lease(1, names_of("a", 12))
    host.lookup("b again", names_of("b", 12))
    host.answer_all()
    assert host.sources("b again") == [L2] * 4 + [L3] * 8
    host.release(1)


def test_cancel_after_the_final_report_makes_room_at_once() -> None:
    host = with_storage(32)
    host.store(names_of("a", 16) + names_of("b", 16))
    host.lookup("a", names_of("a", 16))
    host.answer_all()
    assert host.is_final("a")
    assert host.stat("pages_staged") == 16
    host.cancel("a")
    assert host.stat("pages_staged") == 0
    host.lookup("b", names_of("b", 16))
    host.answer_all()
    assert host.sources("b") == [L3] * 16


def test_cancel_keeps_what_another_lookup_waits_for() -> None:
    host = with_storage(64)
    host.store(names_of("a", 8))
    host.lookup("a", names_of("a", 8))
    host.lookup("b", names_of("a", 4))
    host.answer_all()
    assert host.stat("pages_staged") == 8
    host.cancel("a")
    assert host.stat("pages_staged") == 4
    host.cancel("b")
    assert host.stat("pages_staged") == 0


def test_leased_and_written_pages_leave_room_for_the_next_lookup_while_others_can_go() -> None:
    host = with_storage(64, replace(STORAGE, max_write_batches=1))
    host.commit(names_of("old", 56))
    host.answer_all()
    host.store(names_of("a", 20) + names_of("b", 24))
    for lease, (chain, num_pages) in enumerate((("a", 20), ("b", 24)), start=1):
        host.lookup(chain, names_of(chain, num_pages))
        host.answer_all()
        assert host.sources(chain) == [L3] * num_pages
        host.lease(lease, names_of(chain, num_pages))
        host.commit(names_of(f"new{chain}", 4))
    host.release(1, 2)


def test_staged_pages_of_a_lost_connection_go_piece_by_piece() -> None:
    host = HostScript(64, STORAGE, piece_pages=4)
    host.attach_storage(50)
    host.attach_scheduler()
    host.store(range(10))
    host.lookup("r", range(10))
    host.answer_all()
    host.lose_scheduler()
    assert host.stat("pages_staged") == 6
    assert host.core.next_deadline_s() == host.now_s
    host.tick_while_due()
    assert host.stat("pages_staged") == 0


def test_answer_that_nobody_asked_for_is_an_accounting_error() -> None:
    host = with_storage()
    with pytest.raises(AccountingError, match="batch 77"):
        host.hear_storage(ObjectsDone(batch_id=BatchId(77), statuses=b""))
