"""Objects in extents of large files: which extent holds which object, now and after a restart."""

import logging
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.storage.file_modes import OWNER_ALONE

logger = logging.getLogger(__name__)

EXTENT_ALIGNMENT_BYTES = 4096
_GROWTH_EXTENTS = 64
"""The number of extents by which a slab file grows at a time."""


@dataclass(frozen=True, slots=True)
class SlabName:
    """An object of any namespace."""

    namespace: bytes
    group: int
    key: PageKey

    def __str__(self) -> str:
        return f"{self.namespace.hex()}/{self.group}/{self.key.hex()}"

    @classmethod
    def parse(cls, text: str) -> "SlabName":
        """The inverse of `str`."""
        namespace, group, key = text.split("/")
        return cls(bytes.fromhex(namespace), int(group), PageKey(bytes.fromhex(key)))


@dataclass(frozen=True, slots=True)
class SlabPlace:
    """Where an object's bytes are."""

    extent_bytes: int
    extent: int
    size_bytes: int

    @property
    def offset(self) -> int:
        """The offset of the extent in the slab file, in bytes."""
        return self.extent * self.extent_bytes


def extent_bytes_for(size_bytes: int) -> int:
    """The size of extent that an object goes into."""
    return -(-size_bytes // EXTENT_ALIGNMENT_BYTES) * EXTENT_ALIGNMENT_BYTES


class Slab:
    """Owns: one file of equal extents, and which of them are free.

    An extent that is given back while someone reads it is handed out again only after the last
    reader is done.
    """

    def __init__(self, path: Path, extent_bytes: int) -> None:
        """Open or create the file; all its extents are free until `claim`."""
        self.extent_bytes = extent_bytes
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ALONE.file)
        self._num_extents = os.fstat(self.fd).st_size // extent_bytes
        self._taken: set[int] = set()
        self._free = list(range(self._num_extents - 1, -1, -1))
        self._readers: Counter[int] = Counter()
        self._given_back: set[int] = set()

    def claim(self, extents: Iterable[int]) -> None:
        """Mark extents as taken, as the log says that they are."""
        self._taken = set(extents)
        self._num_extents = max(self._num_extents, max(self._taken, default=-1) + 1)
        self._free = [
            extent for extent in range(self._num_extents - 1, -1, -1) if extent not in self._taken
        ]

    def take(self) -> int:
        """A free extent; the file grows if there is none. Raises OSError if it cannot."""
        if not self._free:
            num_extents = self._num_extents + _GROWTH_EXTENTS
            os.ftruncate(self.fd, num_extents * self.extent_bytes)
            self._free = list(range(num_extents - 1, self._num_extents - 1, -1))
            self._num_extents = num_extents
        extent = self._free.pop()
        self._taken.add(extent)
        return extent

    def give_back(self, extent: int) -> None:
        """Free an extent whose object is gone."""
        self._taken.remove(extent)
        if self._readers[extent]:
            self._given_back.add(extent)
        else:
            self._free.append(extent)

    def start_read(self, extent: int) -> None:
        """Keep the extent's bytes until `end_read`."""
        self._readers[extent] += 1

    def end_read(self, extent: int) -> None:
        """End a read that `start_read` began."""
        self._readers[extent] -= 1
        if not self._readers[extent]:
            del self._readers[extent]
            if extent in self._given_back:
                self._given_back.remove(extent)
                self._free.append(extent)

    def check(self) -> None:
        """Raises AccountingError unless extents are taken, free, or given back under readers."""
        states = [*self._taken, *self._free, *self._given_back]
        if sorted(states) != list(range(self._num_extents)) or not self._given_back <= set(
            self._readers
        ):
            raise AccountingError(
                f"slab of {self._num_extents} extents: {len(self._taken)} taken, "
                f"{len(self._free)} free, "
                f"{len(self._given_back)} given back under {len(self._readers)} readers"
            )

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


_RECORD = struct.Struct("<HHIII8s32s")
"""A log record: is it there, group, extent bytes, extent, size, namespace, key; then a CRC-32."""
_RECORD_BYTES = _RECORD.size + 4
_COMPACT_SLACK_RECORDS = 10_000


class SlabIndex:
    """Owns: the places of all objects, and the append-only log that tells them after a restart.

    A removal is logged before its extent may be written again, and an object after it is whole, so
    that a process that is killed leaves no name with other bytes. Nothing is synced: what a power
    loss leaves fails verification.
    """

    def __init__(self, path: Path) -> None:
        """Replay the log up to the first record that is not whole, and write it anew."""
        self._path = path
        self._places = _replay(path)
        self._fd = -1
        self._num_records = 0
        self._compact_at_records = 0
        self._compact()

    def __contains__(self, name: SlabName) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[tuple[SlabName, SlabPlace]]:
        return iter(list(self._places.items()))

    def find(self, name: SlabName) -> SlabPlace | None:
        """The place of an object."""
        return self._places.get(name)

    def add(self, objects: Iterable[tuple[SlabName, SlabPlace]]) -> None:
        """Publish objects whose bytes are in place.

        Raises OSError, and publishes none, if the log cannot grow.
        """
        added = dict(objects)
        self._append(b"".join(_record(name, place) for name, place in added.items()))
        self._places.update(added)
        self._tidy()

    def remove(self, names: Iterable[SlabName]) -> list[SlabPlace]:
        """Take objects off the index; returns their places, which may be used again.

        A removal that cannot be logged is still made: after a restart the object fails
        verification, or gives way to the one that was written into its extent.
        """
        places = {name: self._places.pop(name) for name in names}

        try:
            self._append(b"".join(_record(name, None) for name in places))
        except OSError as error:
            logger.warning(
                "removals are not logged, and after a restart fail verification: %s", error
            )

        self._tidy()
        return list(places.values())

    def _append(self, records: bytes) -> None:
        if not records:
            return
        done = os.write(self._fd, records)
        if done != len(records):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - done)
            raise OSError(f"the log {self._path} takes {done} of {len(records)} bytes")
        self._num_records += len(records) // _RECORD_BYTES

    def _tidy(self) -> None:
        """Replace a log of which most is removals."""
        if self._num_records <= self._compact_at_records:
            return

        # What is in the log is good, so that a failure costs nothing but its length.
        try:
            self._compact()
        except OSError as error:
            self._compact_at_records = 2 * self._num_records
            logger.warning("the log %s cannot be replaced and grows: %s", self._path, error)

    def _compact(self) -> None:
        """Replace the log by one that holds no removals.

        Raises OSError, and then it is as it was.
        """
        temporary = self._path.with_suffix(".tmp")
        fd = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC,
            OWNER_ALONE.file,
        )

        try:
            _write_all(fd, b"".join(_record(name, place) for name, place in self._places.items()))
            temporary.rename(self._path)
        except BaseException:
            os.close(fd)
            raise

        self.close()
        self._fd = fd
        self._num_records = len(self._places)
        self._compact_at_records = 4 * self._num_records + _COMPACT_SLACK_RECORDS

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _record(name: SlabName, place: SlabPlace | None) -> bytes:
    extent_bytes, extent, size = (
        (0, 0, 0) if place is None else (place.extent_bytes, place.extent, place.size_bytes)
    )
    fields = _RECORD.pack(
        place is not None, name.group, extent_bytes, extent, size, name.namespace, name.key
    )
    return fields + zlib.crc32(fields).to_bytes(4, "little")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _replay(path: Path) -> dict[SlabName, SlabPlace]:
    """The place of each object, by the log.

    Of two names in one extent the later one holds: the removal of the other got lost.
    """
    places: dict[SlabName, SlabPlace] = {}
    owners: dict[tuple[int, int], SlabName] = {}

    for name, place in _records(path):
        former = places.pop(name, None)
        if former is not None:
            del owners[former.extent_bytes, former.extent]
        if place is None:
            continue

        extent = place.extent_bytes, place.extent
        if extent in owners:
            del places[owners[extent]]
        places[name] = place
        owners[extent] = name
    return places


def _records(path: Path) -> Iterator[tuple[SlabName, SlabPlace | None]]:
    data = path.read_bytes() if path.exists() else b""
    for start in range(0, len(data) - _RECORD_BYTES + 1, _RECORD_BYTES):
        fields = data[start : start + _RECORD.size]
        crc = data[start + _RECORD.size : start + _RECORD_BYTES]
        if zlib.crc32(fields).to_bytes(4, "little") != crc:
            return
        is_there, group, extent_bytes, extent, size, namespace, key = _RECORD.unpack(fields)
        name = SlabName(namespace, group, PageKey(key))
        yield name, SlabPlace(extent_bytes, extent, size) if is_there else None
