"""Lookups for which nobody waits yet go after requests, and nobody pins what they bring."""

from dataclasses import replace

from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import PageSource, ReadObjects, Urgency
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE

L2, L3 = PageSource.L2, PageSource.L3
FOUR_READS = replace(STORAGE, max_read_batches=4)


def with_storage(num_pages: int = 64, settings: StorageSettings = FOUR_READS) -> HostScript:
    host = HostScript(num_pages, settings)
    host.attach_scheduler()
    host.attach_storage(50)
    return host


def names_of(request: str, num_pages: int) -> list[str]:
    return [f"{request}{index}" for index in range(num_pages)]


def hint(host: HostScript, request: str, num_pages: int) -> None:
    host.lookup(request, names_of(request, num_pages), urgency=Urgency.HINT)


def first_names(host: HostScript) -> list[str]:
    """The first page of each read in flight."""
    reads = [order for order in host.orders if isinstance(order, ReadObjects)]
    return [split_keys(order.keys)[0].rstrip(b".").decode() for order in reads]


def test_hint_brings_pages_to_l2_and_pins_none() -> None:
    host = with_storage()
    host.store(names_of("h", 8))
    hint(host, "h", 8)
    host.answer_all()
    assert host.sources("h") == [L3] * 8
    assert host.stat("pages_staged") == 0
    host.lookup("r", names_of("h", 8))
    assert host.sources("r") == [L2] * 8


def test_hints_leave_half_of_the_reads_to_requests_which_go_first() -> None:
    host = with_storage()
    host.store(names_of("h", 24) + names_of("r", 12))
    hint(host, "h", 24)
    host.answer()
    assert first_names(host) == ["h0", "h4"]
    host.lookup("r", names_of("r", 12))
    host.answer(index=2)
    assert first_names(host) == ["h0", "h4", "r0", "r4"]
    host.answer()
    assert first_names(host) == ["h4", "r0", "r4", "r8"]
    host.answer()
    assert first_names(host) == ["r0", "r4", "r8"], (
        "no more for the hint while requests fill its half"
    )
    host.answer_all()
    assert host.is_final("h")
    assert host.is_final("r")


def test_page_that_a_request_waits_for_too_is_staged() -> None:
    host = with_storage()
    host.store(names_of("h", 8))
    hint(host, "h", 8)
    host.answer()
    host.lookup("r", names_of("h", 4))
    host.answer(index=2)
    host.answer_all()
    assert host.sources("r") == [L3] * 4
    assert host.stat("pages_staged") == 4
    assert host.stat("l3_reads_ok") == 8


def test_open_hints_bring_at_most_half_of_l2() -> None:
    host = with_storage(32)
    host.store(names_of("a", 20) + names_of("b", 20))
    hint(host, "a", 20)
    hint(host, "b", 20)
    host.answer_all()
    brought = [host.sources(request).count(L3) for request in "ab"]
    assert sum(brought) == 16
    assert {host.sources(request)[-1] for request in "ab"} == {PageSource.NO_HOST_PAGE}
    host.store(names_of("c", 8))
    hint(host, "c", 8)
    host.answer_all()
    assert host.sources("c") == [L3] * 8, "the others have ended"


def test_cancelled_hint_orders_no_further_read() -> None:
    host = with_storage()
    host.store(names_of("h", 24))
    hint(host, "h", 24)
    host.answer()
    num_reads = len(host.orders)
    host.cancel("h")
    assert len(host.cancelled) == num_reads
    host.answer_all()
    assert host.stat("l3_reads_cancelled") == 4 * num_reads
    assert host.stat("lookups") == host.stat("pages_reading") == host.stat("pages_staged") == 0
