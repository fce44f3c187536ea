"""Page copies between L1 and L2: what engines promise, how a plan's columns become copies."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.plan import PageCopies


class Direction(Enum):
    """Which way the bytes go."""

    LOAD = "L2 to L1"
    BACKUP = "L1 to L2"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferDone:
    """A load or backup whose bytes have all arrived."""

    transfer_id: int
    is_stale: bool
    """Whether a host page has another generation than the plan named."""
    num_bytes: int
    """The bytes that a load from L2 has moved by this rank itself; 0 for a backup."""
    started_s: float
    ended_s: float
    """The start and end of the transfer, both by `time.monotonic()`."""


OnDone = Callable[[TransferDone], None]
"""A callback, called from a thread of the engine, once per transfer, in order of completion. It
must not block.
"""
OnError = Callable[[BaseException], None]
"""A callback, called from a thread of the engine that cannot go on."""
WaitLayer = Callable[[int, int], None]
"""Called with (transfer id, layer of the model) before a layer uses KV that a load brings."""


class TransferEngine(Protocol):
    """Copies whole pages between one rank's pools and the node's arena, beside the model's work.

    Of pages that are equal on all ranks each copies a share and writes it to its peers' pools, too.
    A load is done, and a layer of it brought, once the shares of all ranks have come to this one;
    it is reported once this rank's share is with all its peers as well. So nobody writes to the
    pages of a load that all ranks have reported.
    """

    def start(self, loads: PageCopies, backups: PageCopies) -> None:
        """Begin copies and return.

        A backup sees all that was enqueued before on the calling thread's stream; nothing has to
        have been, where its pages are complete.

        Raises AccountingError if a page, host page or group does not exist, or a transfer id is in
        flight.
        """

    def wait_layer(self, transfer_id: int, layer: int) -> None:
        """Hold the caller's later work back until a load has brought `layer` and all before it.

        Returns at once if the transfer is complete or was never started.
        """

    def drain(self) -> None:
        """Wait until all copies begun so far have ended and been reported."""

    def close(self) -> None:
        """Finish what has begun and end the engine's threads."""

    def abandon_peers(self) -> None:
        """Wait for no peer from now on, as a rank of the group is lost.

        Loads that lack a peer's share end unreported, and nobody waits for their layers.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCopy:
    """The part of a transfer that belongs to one layer: the same in all pages of one group."""

    layer: int
    """The number of the layer in the model."""
    group: int
    index: int
    """The number of the layer within its group."""
    start: int
    stop: int
    """The range of bytes in the canonical page that the rank keeps of this layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPages:
    """The pages of one transfer in one KV group that this rank copies, paired entry by entry."""

    page_ids: Int32Array
    host_page_ids: Int32Array
    max_pages: int
    """The most pages that any rank copies, by which all ranks cut a load into the same runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoad:
    """The part of a load whose pages all ranks divide among them: the same on each of them."""

    group: int
    page_id: int
    """The first page of all ranks in the group, which no other load in flight has."""
    layers: tuple[int, ...]
    """The layers of all shared groups, in rising order."""

    def num_layers_until(self, layer: int) -> int:
        """How many of its layers must be there before the model uses `layer`."""
        return bisect_right(self.layers, layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One transfer, taken apart."""

    transfer_id: int
    direction: Direction
    groups: dict[int, GroupPages]
    host_page_ids: Int32Array
    """The host pages of all groups and ranks, in the order of `generations`."""
    generations: Int32Array
    layer_copies: tuple[LayerCopy, ...]
    """The copies by rising layer; none if other ranks write back all that this one keeps."""
    shared: SharedLoad | None = None
    """The part of the load that peers bring; None: they bring none of it."""

    @property
    def loaded_bytes(self) -> int:
        """Bytes that this rank copies if it is a load, else 0."""
        if self.direction is Direction.BACKUP:
            return 0
        return sum(
            (copy.stop - copy.start) * len(self.groups[copy.group].page_ids)
            for copy in self.layer_copies
        )

    def is_stale(self, generations: NDArray[np.int32]) -> bool:
        """Whether a host page has another generation by now. Ask after the bytes have moved."""
        return not np.array_equal(generations[self.host_page_ids], self.generations)


Delay = Callable[[Transfer], None]
"""A function for tests, called in a thread of the engine before it copies some layers, that can
hold the copies up. On a GPU the copies' stream is current.
"""


def no_delay(transfer: Transfer) -> None:
    """Copies begin when they can."""


def require_peers(shard: KvShard, peers: object | None) -> None:
    """Raises AccountingError if pages are equal on all ranks, and the others cannot be reached."""
    groups = range(len(shard.layout.groups))
    if peers is None and any(shard.is_shared(group) for group in groups):
        raise AccountingError(f"rank {shard.rank} of {shard.num_ranks} shares pages with no peers")


class TransferTable:
    """Takes a plan's columns apart and checks them against the pools and the arena."""

    def __init__(self, shard: KvShard, num_pages: Sequence[int], geometry: ArenaGeometry) -> None:
        """`num_pages`: usable pages of each group's pool, padding page 0 not counted."""
        self._num_pages = np.array(num_pages)
        self._geometry = geometry
        self._shard = shard
        groups = range(len(shard.layout.groups))
        self._layer_copies = [_layer_copies(shard, group) for group in groups]

    def split(self, loads: PageCopies, backups: PageCopies) -> list[Transfer]:
        """The transfers of a plan. Raises AccountingError if one names what does not exist."""
        return self._split(loads, Direction.LOAD) + self._split(backups, Direction.BACKUP)

    def _split(self, copies: PageCopies, direction: Direction) -> list[Transfer]:
        if not len(copies):
            return []
        self._check(copies)

        # The rows of one transfer stand together: it ends where the id changes.
        boundaries = (np.flatnonzero(np.diff(copies.transfer_ids)) + 1).tolist()
        starts = [0, *boundaries]
        stops = [*boundaries, len(copies)]
        parts = [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]
        return [self._transfer(copies, part, direction) for part in parts]

    def _transfer(self, copies: PageCopies, part: slice, direction: Direction) -> Transfer:
        groups = copies.groups[part]
        page_ids, host_page_ids = copies.page_ids[part], copies.host_page_ids[part]
        rows = {group: np.flatnonzero(groups == group) for group in np.unique(groups).tolist()}

        pages = {
            group: self._group_pages(group, direction, page_ids[places], host_page_ids[places])
            for group, places in rows.items()
        }
        # All ranks go through the same layers of a load, as they tell each other how far they are.
        layer_copies = [
            copy
            for group, own in pages.items()
            if direction is Direction.LOAD or len(own.page_ids)
            for copy in self._layer_copies[group]
        ]
        is_load = direction is Direction.LOAD
        return Transfer(
            transfer_id=int(copies.transfer_ids[part.start]),
            direction=direction,
            groups=pages,
            host_page_ids=host_page_ids,
            generations=copies.generations[part],
            layer_copies=tuple(sorted(layer_copies, key=lambda copy: copy.layer)),
            shared=self._shared_load(groups, page_ids) if is_load else None,
        )

    def _group_pages(
        self, group: int, direction: Direction, page_ids: Int32Array, host_page_ids: Int32Array
    ) -> GroupPages:
        """This rank's share of the pages of a transfer in one group."""
        is_load = direction is Direction.LOAD
        rows = self._shard.loaded_rows(group) if is_load else self._shard.backed_up_rows(group)
        num_sharers = self._shard.num_ranks if self._shard.is_shared(group) else 1
        return GroupPages(
            page_ids=page_ids[rows],
            host_page_ids=host_page_ids[rows],
            max_pages=-(-len(page_ids) // num_sharers),
        )

    def _shared_load(self, groups: Int32Array, page_ids: Int32Array) -> SharedLoad | None:
        shared = [group for group in np.unique(groups).tolist() if self._shard.is_shared(group)]
        if not shared:
            return None
        layers = [copy.layer for group in shared for copy in self._layer_copies[group]]
        return SharedLoad(
            group=shared[0],
            page_id=int(page_ids[groups == shared[0]][0]),
            layers=tuple(sorted(layers)),
        )

    def _check(self, copies: PageCopies) -> None:
        _check_range("KV group", copies.groups, 0, self._geometry.num_groups)
        _check_range("GPU page", copies.page_ids, 1, int(self._num_pages.max()) + 1)
        if (copies.page_ids > self._num_pages[copies.groups]).any():
            raise AccountingError(
                f"a plan copies GPU pages that their group's pool lacks: {copies}"
            )

        _check_range("host page", copies.host_page_ids, 0, self._geometry.num_host_pages)
        slab_pages = np.array(
            [self._geometry.slab_pages(group) for group in range(self._geometry.num_groups)]
        )
        # Ids count as if every slab held the most pages; slabs of large pages hold fewer.
        indices = copies.host_page_ids % self._geometry.pages_per_slab
        if (indices >= slab_pages[copies.groups]).any():
            raise AccountingError(
                f"a plan copies host pages that no slab of their group has: {copies}"
            )


def _check_range(what: str, ids: Int32Array, start: int, stop: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < start or high >= stop:
        raise AccountingError(f"a plan copies {what}s {low}..{high}; expected {start}..{stop - 1}")


def _layer_copies(shard: KvShard, group: int) -> list[LayerCopy]:
    layer_bytes, part = shard.layer_bytes(group), shard.byte_range(group)
    return [
        LayerCopy(
            layer=layer,
            group=group,
            index=index,
            start=index * layer_bytes + part.start,
            stop=index * layer_bytes + part.stop,
        )
        for index, layer in enumerate(shard.layout.groups[group].layers)
    ]
