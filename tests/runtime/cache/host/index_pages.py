"""Arenas, keys and pages for tests of the index of L2."""

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.index import HostIndex


def make_geometry(num_slabs: int, slab_pages: tuple[int, ...]) -> ArenaGeometry:
    """Slabs that hold `slab_pages[g]` pages of group g."""
    page_bytes = tuple(1024 // pages for pages in slab_pages)
    return ArenaGeometry(
        num_slabs=num_slabs,
        slab_bytes=1024,
        slabs_offset=4096,
        pages_per_slab=max(slab_pages),
        page_bytes=page_bytes,
        payload_bytes=tuple(n - 64 for n in page_bytes),
    )


def key(name: int | str) -> PageKey:
    return PageKey(str(name).encode().ljust(32, b"."))


def publish(index: HostIndex, name: int | str, group: int = 0) -> HostPageId:
    page_id = index.allocate(group)
    assert page_id is not None
    assert index.publish(page_id, key(name))
    return page_id
