"""Where each host page lies in an arena: a table of generations, then slabs of equal size."""

from dataclasses import dataclass

from raydix.errors import ConfigError
from raydix.ids import HostPageId
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES, KvLayout
from raydix.runtime.messages.arrays import Int32Array

ALIGNMENT_BYTES = 4096
"""The alignment of slabs: memory is populated and registered with a device in this unit."""
MAX_SLAB_BYTES = 64 << 20
MIN_SLABS_PER_GROUP = 4
"""The least number of slabs per KV group if there are several, so that each can own some."""
GENERATION_BYTES = 4
USERS_BYTES = 64 << 10
"""The bytes behind the slabs, where HostMemory notes who uses the arena."""


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaGeometry:
    """Plain numbers that all processes which map one arena share.

    A slab belongs to one KV group at a time. Host page id = slab * pages_per_slab + index in the
    slab, whatever the group; a group whose pages are larger leaves the last ids of its slabs
    unused.
    """

    num_slabs: int
    slab_bytes: int
    slabs_offset: int
    """The bytes before slab 0, which hold one int32 generation per host page id."""
    pages_per_slab: int
    page_bytes: tuple[int, ...]
    """The bytes of a host page of each KV group: object header and payload, rounded up."""
    payload_bytes: tuple[int, ...]

    @property
    def num_groups(self) -> int:
        """The number of KV groups."""
        return len(self.page_bytes)

    @property
    def num_host_pages(self) -> int:
        """The number of host page ids, used or not by the group that owns their slab."""
        return self.num_slabs * self.pages_per_slab

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole arena."""
        return self.users_offset + USERS_BYTES

    @property
    def users_offset(self) -> int:
        """The bytes before those that tell who uses the arena."""
        return self.slabs_offset + self.num_slabs * self.slab_bytes

    def object_bytes(self, group: int) -> int:
        """The bytes of a page of `group` as an object: header and payload."""
        return OBJECT_HEADER_BYTES + self.payload_bytes[group]

    def slab_pages(self, group: int) -> int:
        """The number of host pages that one slab holds while it belongs to `group`."""
        return self.slab_bytes // self.page_bytes[group]

    def max_pages(self, group: int) -> int:
        """The number of host pages that `group` would have if it owned every slab."""
        return self.num_slabs * self.slab_pages(group)

    def slab_of(self, host_page_id: int) -> int:
        """The slab of a host page."""
        return host_page_id // self.pages_per_slab

    def page_offset(self, host_page_id: HostPageId, group: int) -> int:
        """Byte offset in the arena of a host page's header.

        Raises ValueError if `group` has no such page.
        """
        slab, index = divmod(host_page_id, self.pages_per_slab)
        if not (
            0 <= group < self.num_groups
            and 0 <= slab < self.num_slabs
            and index < self.slab_pages(group)
        ):
            raise ValueError(
                f"host page {host_page_id} of group {group} is outside the arena of "
                f"{self.num_slabs} slabs with {self.pages_per_slab} ids each and "
                f"{self.num_groups} groups"
            )

        return self.slabs_offset + slab * self.slab_bytes + index * self.page_bytes[group]

    def page_offsets(self, host_page_ids: Int32Array, group: int) -> list[int]:
        """The byte offset of each of many host pages, which cost little more than one."""
        pages: list[int] = host_page_ids.tolist()
        per_slab = self.pages_per_slab
        num_indices = self.slab_pages(group) if 0 <= group < self.num_groups else 0
        end = self.num_slabs * per_slab
        for page in pages:
            if not (0 <= page < end and page % per_slab < num_indices):
                self.page_offset(HostPageId(page), group)

        # No arrays: between two batches their code leaves the processor's caches, and for some
        # dozens of pages that takes longer than the arithmetic.
        start, slab_bytes, page_bytes = self.slabs_offset, self.slab_bytes, self.page_bytes[group]
        return [
            start + page // per_slab * slab_bytes + page % per_slab * page_bytes for page in pages
        ]


def plan_arena(layout: KvLayout, size_bytes: int) -> ArenaGeometry:
    """Divide `size_bytes` of host pages into slabs; the table of generations comes on top, and so
    does the room for the names of users.

    Raises ConfigError if not every group gets a slab.
    """
    page_bytes = tuple(layout.host_page_bytes(group) for group in range(len(layout.groups)))
    num_groups, largest = len(page_bytes), max(page_bytes)

    num_pages = size_bytes // largest
    if num_pages < num_groups:
        raise ConfigError(
            f"the host arena of {size_bytes} bytes holds {num_pages} pages of {largest} bytes; "
            f"expected one for each of {num_groups} KV groups. Set cache.l2.bytes_per_node to at "
            f"least {largest * num_groups}."
        )

    wanted_slabs = max(
        -(-size_bytes // MAX_SLAB_BYTES), 1 if num_groups == 1 else MIN_SLABS_PER_GROUP * num_groups
    )
    # Pages of which few fill a slab leave much of it unused: more slabs of fewer pages use all.
    largest_per_slab = num_pages // min(wanted_slabs, num_pages)
    num_slabs = num_pages // largest_per_slab

    slab_bytes = _round_up(largest_per_slab * largest, ALIGNMENT_BYTES)
    pages_per_slab = max(slab_bytes // bytes_ for bytes_ in page_bytes)
    table_bytes = num_slabs * pages_per_slab * GENERATION_BYTES

    return ArenaGeometry(
        num_slabs=num_slabs,
        slab_bytes=slab_bytes,
        slabs_offset=_round_up(table_bytes, ALIGNMENT_BYTES),
        pages_per_slab=pages_per_slab,
        page_bytes=page_bytes,
        payload_bytes=tuple(layout.payload_bytes(group) for group in range(len(layout.groups))),
    )
