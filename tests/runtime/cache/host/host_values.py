"""Keys, settings and an arena for tests of HostMemory."""

from collections.abc import Sequence

from raydix.ids import PageKey
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.messages.host import LookupProgress, PageSource

PAGE_SIZE = 16
STORAGE = StorageSettings(
    min_tokens=2 * PAGE_SIZE,
    batch_pages=4,
    max_read_batches=2,
    breaker_failures=2,
    # Tests count seconds, and pages of some hundred bytes would add a few microseconds.
    transfer_s_per_byte=0.0,
)


def make_key(name: int | str) -> PageKey:
    """The name comes first, as mirrors know the first half of a key only."""
    return PageKey(str(name).encode().ljust(32, b"."))


def make_keys(names: "range | list[int] | list[str]") -> bytes:
    return b"".join(make_key(name) for name in names)


def make_geometry(num_pages: int, num_slabs: int, page_sizes: tuple[int, ...]) -> ArenaGeometry:
    """Room for `num_pages` pages of size 1. `page_sizes`: one per KV group."""
    page_bytes = tuple(128 * size for size in page_sizes)
    return ArenaGeometry(
        num_slabs=num_slabs,
        slab_bytes=128 * num_pages // num_slabs,
        slabs_offset=4096,
        pages_per_slab=num_pages // num_slabs,
        page_bytes=page_bytes,
        payload_bytes=tuple(num_bytes - 64 for num_bytes in page_bytes),
    )


def assert_follows(
    report: LookupProgress, earlier: Sequence[LookupProgress], num_groups: int
) -> None:
    """A lookup's report comes before the final one, and is final once nothing is pending."""
    assert not earlier or not earlier[-1].is_final, "a report after the final one"
    assert len(report.sources) == num_groups
    assert report.is_final == (PageSource.PENDING not in b"".join(report.sources))
