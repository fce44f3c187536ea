"""A folder of slab files: which object has which extent, for one engine at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from raydix.errors import ConfigError
from raydix.plugins.storage.slab import (
    Slab,
    SlabIndex,
    SlabName,
    SlabPlace,
    extent_bytes_for,
)
from raydix.runtime.storage.file_modes import OWNER_ALONE


class SlabFolder:
    """Owns: the slab files below a folder, their index, and the lock on the folder.

    Not thread-safe. Each slab file is registered with USRBIO for as long as it is open.
    """

    def __init__(self, path: Path, usrbio: Any) -> None:
        """Lock the folder and read its index.

        Raises ConfigError if another engine uses the folder, and OSError if it is unusable.
        """
        self._path = path
        self._usrbio = usrbio
        self._slabs: dict[int, Slab] = {}

        with contextlib.ExitStack() as undo:
            self._lock_fd = _lock(path)
            undo.callback(os.close, self._lock_fd)
            self._index = SlabIndex(path / "index.log")
            undo.callback(self._index.close)
            undo.callback(self._close_slabs)
            self._claim_extents()
            self._undo = undo.pop_all()

    def _claim_extents(self) -> None:
        taken: dict[int, list[int]] = {}
        for _, place in self._index:
            taken.setdefault(place.extent_bytes, []).append(place.extent)
        for extent_bytes, extents in taken.items():
            self._slab(extent_bytes).claim(extents)

    def _slab(self, extent_bytes: int) -> Slab:
        if extent_bytes not in self._slabs:
            slab = Slab(self._path / f"slots-{extent_bytes}.slab", extent_bytes)
            try:
                self._usrbio.register_fd(slab.fd)
            except BaseException:
                slab.close()
                raise
            self._slabs[extent_bytes] = slab
        return self._slabs[extent_bytes]

    def __contains__(self, name: SlabName) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[tuple[SlabName, SlabPlace]]:
        return iter(self._index)

    def find(self, name: SlabName) -> SlabPlace | None:
        """The place of an object."""
        return self._index.find(name)

    def fd(self, place: SlabPlace) -> int:
        """The file that an extent is in."""
        return self._slabs[place.extent_bytes].fd

    def start_read(self, place: SlabPlace) -> None:
        """Somebody reads an extent: its bytes stay until `end_read`."""
        self._slabs[place.extent_bytes].start_read(place.extent)

    def end_read(self, place: SlabPlace) -> None:
        """End a read that `start_read` began."""
        self._slabs[place.extent_bytes].end_read(place.extent)

    def take_extent(self, size_bytes: int) -> SlabPlace:
        """An extent that no name points at. Raises OSError."""
        extent_bytes = extent_bytes_for(size_bytes)
        return SlabPlace(extent_bytes, self._slab(extent_bytes).take(), size_bytes)

    def publish(
        self, taken: Sequence[tuple[SlabName, SlabPlace]], is_whole: Sequence[bool]
    ) -> dict[SlabName, SlabPlace]:
        """Enter the objects that are in their extents whole, and give the other extents back.

        A name that another writer has entered meanwhile keeps its object. Returns the new
        objects. Raises OSError, and enters none, if the log cannot grow.
        """
        new: dict[SlabName, SlabPlace] = {}

        try:
            for (name, place), whole in zip(taken, is_whole, strict=True):
                if whole and name not in self._index and name not in new:
                    new[name] = place
            self._index.add(new.items())
        except BaseException:
            new = {}
            raise
        finally:
            # Two writers of one name have an extent each; the second one's is free again.
            self._give_back(place for name, place in taken if new.get(name) != place)
        return new

    def remove(self, names: Iterable[SlabName]) -> None:
        """Take objects off the index, those that are there. A failure to log it is no failure."""
        self._give_back(self._index.remove(name for name in names if name in self._index))

    def _give_back(self, places: Iterable[SlabPlace]) -> None:
        for place in places:
            self._slabs[place.extent_bytes].give_back(place.extent)

    def check(self) -> None:
        """Raises AccountingError unless every extent is accounted for."""
        for slab in self._slabs.values():
            slab.check()

    def close(self) -> None:
        """Close all files; another engine may use the folder then."""
        self._undo.close()

    def _close_slabs(self) -> None:
        for slab in self._slabs.values():
            self._usrbio.deregister_fd(slab.fd)
            slab.close()
        self._slabs = {}


def _lock(folder: Path) -> int:
    """The descriptor that holds the lock: two engines would overwrite each other's extents."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ALONE.file)

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(
            f"cache.l3.path {folder} is in use by another engine. Give each engine a folder of "
            "its own."
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd
