"""Orders to L3 count bytes: of large pages few go together, and they may take longer."""

from dataclasses import replace

import pytest

from raydix.runtime.cache.host.events import Tick
from raydix.runtime.messages.host import PageSource, ReadObjects, WriteObjects
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE

PAGE_BYTES = 128
SECOND_PER_PAGE = replace(STORAGE, transfer_s_per_byte=1 / PAGE_BYTES)


@pytest.mark.parametrize(
    ("batch_bytes", "num_pages"), [(1, 1), (3 * PAGE_BYTES + 7, 3), (1 << 30, 4)]
)
def test_a_batch_has_as_many_pages_as_its_bytes_hold(batch_bytes: int, num_pages: int) -> None:
    host = with_storage(64, replace(STORAGE, batch_bytes=batch_bytes))
    host.store([f"a{name}" for name in range(12)])
    host.lookup("a", [f"a{name}" for name in range(12)])
    host.commit(range(12))

    most: dict[type, int] = {ReadObjects: 0, WriteObjects: 0}
    while host.orders:
        order = host.answer()
        if isinstance(order, ReadObjects | WriteObjects):
            most[type(order)] = max(most[type(order)], len(order.host_page_ids))

    assert most == {ReadObjects: num_pages, WriteObjects: num_pages}
    assert host.sources("a") == [PageSource.L3] * 12


def after_small_answers(host: HostScript) -> HostScript:
    """The host, once L3 has read one page at a time for it, at once."""
    for number in range(16):
        host.store([f"small{number}"])
        host.lookup(f"small{number}", [f"small{number}", f"none{number}"])
        host.answer_all()
    return host


def sources_after(host: HostScript, names: list[str], seconds: float) -> list[PageSource]:
    """Where pages that L3 has come from, if their read has no answer for so long."""
    host.store(names)
    host.lookup("large", names)
    host.answer()
    host.now_s += seconds
    host.tell(Tick())
    return host.sources("large")


@pytest.mark.parametrize(
    ("seconds", "source"), [(5.9, PageSource.PENDING), (6.1, PageSource.TIMED_OUT)]
)
def test_a_large_read_may_take_longer_than_small_ones_did(
    seconds: float, source: PageSource
) -> None:
    host = after_small_answers(with_storage(64, replace(SECOND_PER_PAGE, min_tokens=1)))

    assert sources_after(host, list("abcd"), seconds) == [source] * 4


def test_reads_under_way_share_the_time_that_bytes_take() -> None:
    settings = replace(SECOND_PER_PAGE, min_tokens=1)
    host = after_small_answers(with_storage(64, settings))

    sources = sources_after(host, list("abcdefgh"), 6.1)
    assert sources == [PageSource.TIMED_OUT] * 8, "one overdue read gives up the others"
    host = after_small_answers(with_storage(64, settings))
    assert sources_after(host, list("abcdefgh"), 5.9) == [PageSource.PENDING] * 8
    # The second one waits for the first.
    host.answer()
    host.now_s += 4.0
    host.tell(Tick())
    assert host.sources("large") == [PageSource.L3] * 4 + [PageSource.PENDING] * 4
