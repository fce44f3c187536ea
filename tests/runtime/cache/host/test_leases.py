"""Leases of host pages, one by one; `test_index` has their state machine."""

import pytest

from raydix.errors import AccountingError
from raydix.ids import HostPageId, LeaseId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from tests.runtime.cache.host.index_pages import key, make_geometry, publish


def make_index(num_pages: int) -> tuple[HostIndex, HostLeases]:
    index = HostIndex(make_geometry(1, (num_pages,)))
    return index, HostLeases(index)


def test_ended_lease_leaves_the_chain_to_lose_its_tail_first() -> None:
    index, leases = make_index(4)
    for name in range(4):
        publish(index, name)
    leases.lease(LeaseId(1), [key(name) for name in range(4)], (0,))
    leases.end(LeaseId(1))
    index.allocate(0)
    assert index.find(0, key(3)) is None
    assert index.find(0, key(0)) is not None


def test_lease_is_the_longest_ready_prefix_and_survives_pressure() -> None:
    index, leases = make_index(4)
    pages = [publish(index, name) for name in (0, 1, 3)]
    assert leases.lease(LeaseId(7), [key(name) for name in range(4)], (0,)) == [pages[:2]]
    while index.allocate(0) is not None:
        pass
    assert [index.find(0, key(name)) is not None for name in (0, 1, 3)] == [True, True, False]
    leases.end(LeaseId(7))
    assert index.allocate(0) == pages[1]


def test_two_readers_must_both_end() -> None:
    index, leases = make_index(1)
    publish(index, "a")
    leases.lease(LeaseId(1), [key("a")], (0,))
    leases.lease(LeaseId(2), [key("a")], (0,))
    leases.end(LeaseId(1))
    assert index.allocate(0) is None
    leases.end(LeaseId(2))
    assert index.allocate(0) is not None


def test_lease_taken_twice_or_unknown_is_an_accounting_error() -> None:
    _, leases = make_index(4)
    leases.lease(LeaseId(1), [], (0,))
    with pytest.raises(AccountingError, match="twice"):
        leases.lease(LeaseId(1), [], (0,))
    with pytest.raises(AccountingError, match="lease 9 is unknown"):
        leases.end(LeaseId(9))


def test_check_finds_a_leased_page_without_a_reader() -> None:
    index, leases = make_index(4)
    publish(index, "a")
    leases.lease(LeaseId(1), [key("a")], (0,))
    index.unpin([HostPageId(0)])
    with pytest.raises(AccountingError, match="1 leases"):
        leases.check()
