"""How much of L2 Schedulers are kept stocked with: pages, or as many bytes."""

from collections import Counter

import pytest

from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.grants import HostGrants
from raydix.runtime.cache.host.index import HostIndex

MIB = 1 << 20


def stock(num_pages: int, page_bytes: int) -> int:
    """Pages that a single Scheduler is granted, of so many that a group has."""
    geometry = ArenaGeometry(
        num_slabs=num_pages,
        slab_bytes=page_bytes,
        slabs_offset=4096,
        pages_per_slab=1,
        page_bytes=(page_bytes,),
        payload_bytes=(page_bytes - 64,),
    )
    grants = HostGrants(HostIndex(geometry), [num_pages], Counter())
    [granted] = grants.fill_up(1)
    return len(granted.host_page_ids)


@pytest.mark.parametrize(
    ("num_pages", "page_mib", "expected"),
    [
        (4096, 1, 512),
        (4096, 63, 32),
        (4096, 300, 6),
        (64, 63, 8),
        (24, 63, 4),
        (4, 63, 1),
        (4, 1, 1),
        (4096, 2000, 1),
    ],
)
def test_of_large_pages_few_are_granted(num_pages: int, page_mib: int, expected: int) -> None:
    assert stock(num_pages, page_mib * MIB) == expected
