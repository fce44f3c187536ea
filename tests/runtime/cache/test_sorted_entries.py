"""Entries in chunks, against one sorted list."""

from bisect import insort

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.page_key import root_key
from raydix.runtime.cache.radix_node import RadixNode, new_root
from raydix.runtime.cache.sorted_entries import OrderEntry, SortedEntries

NODE = new_root(root_key(), 1, 0.0)


@pytest.mark.parametrize("direction", [-1, 0, 1])
def test_any_mixture_of_adds_and_removals_leaves_them_sorted(direction: int) -> None:
    rng = np.random.default_rng(5)
    entries = SortedEntries[RadixNode]()
    expected: list[OrderEntry[RadixNode]] = []
    num_wanted = 0
    for ticket in range(20_000):
        if not ticket % 4000:
            num_wanted = 1500 - num_wanted  # grows to three chunks and more, and shrinks to none
        if len(expected) < num_wanted or rng.random() < 0.2:
            key = float(rng.integers(1000)) if not direction else float(direction * ticket)
            entries.add((key, ticket, NODE))
            insort(expected, (key, ticket, NODE))
        elif expected:
            entries.remove(
                expected.pop(0 if rng.random() < 0.5 else int(rng.integers(len(expected))))
            )
        assert entries.first() == (expected[0] if expected else None)
        assert entries.last() == (expected[-1] if expected else None)
        if not ticket % 500:
            entries.check()
            assert list(entries) == expected


@pytest.mark.parametrize("goes_in_order", [False, True])
def test_chunks_stay_few_after_most_entries_have_gone(goes_in_order: bool) -> None:
    entries = SortedEntries[RadixNode]()
    all_entries = [(float(ticket), ticket, NODE) for ticket in range(20_000)]
    for entry in all_entries:
        entries.add(entry)

    staying = set(range(0, 20_000, 200))
    tickets = (
        range(20_000) if goes_in_order else np.random.default_rng(3).permutation(20_000).tolist()
    )
    for ticket in tickets:
        if ticket not in staying:
            entries.remove(all_entries[ticket])

    assert [ticket for _, ticket, _ in entries] == sorted(staying)
    assert len(entries._chunks) == 1
    entries.check()


def test_check_finds_entries_out_of_order_and_empty_chunks() -> None:
    entries = SortedEntries[RadixNode]()
    for ticket in range(3):
        entries.add((0.0, ticket, NODE))
    entries._chunks[0].reverse()
    with pytest.raises(AccountingError, match="not sorted"):
        entries.check()
    entries._chunks.append([])
    with pytest.raises(AccountingError, match="expected 1 to"):
        entries.check()
