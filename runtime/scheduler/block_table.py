"""A request's block table, and how much of it the device has been told."""

from collections.abc import Iterable

from raydix.runtime.messages.arrays import Int32Array, int32_array


class BlockTable:
    """Owns: the page ids of one request in order, and how many of them the device knows."""

    __slots__ = ("_num_sent", "_page_ids")

    def __init__(self, page_ids: Iterable[int] = ()) -> None:
        self._page_ids = list(page_ids)
        self._num_sent = 0

    def __len__(self) -> int:
        return len(self._page_ids)

    @property
    def has_unsent(self) -> bool:
        """The device's copy is out of date."""
        return self._num_sent < len(self._page_ids)

    def pages(self, start: int, stop: int | None = None) -> Int32Array:
        """Page ids [start, stop), to the end by default."""
        return int32_array(self._page_ids[start:stop])

    def extend(self, page_ids: Int32Array) -> None:
        """The request gets pages."""
        self._page_ids.extend(page_ids.tolist())

    def replace(self, start: int, page_ids: Int32Array) -> None:
        """Other pages stand for the same tokens; the device is told of all from `start` on."""
        self._page_ids[start : start + len(page_ids)] = page_ids.tolist()
        self._num_sent = min(self._num_sent, start)

    def cut(self, stop: int) -> Int32Array:
        """Keep the first `stop` pages; returns the others."""
        surplus = self.pages(stop)
        del self._page_ids[stop:]
        self._num_sent = min(self._num_sent, stop)
        return surplus

    def take_unsent(self) -> tuple[int, list[int]]:
        """Where the device's copy is out of date and the pages from there on; it is told of them."""
        start, self._num_sent = self._num_sent, len(self._page_ids)
        return start, self._page_ids[start:]
