"""The arena as memory of 3FS, and the rings through which pages move (`hf3fs_fuse.io`, USRBIO)."""

import ctypes
import errno
import os
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from raydix.plugins.storage.sections import SHARED_MEMORY

MAX_IOS = 32
"""The most I/O requests of one transfer. A ring of N entries holds N - 1."""
_RING_ENTRIES = 64
_FAIL_ON_HOLES = 2
_WAIT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ExtentIo:
    """One read into, or write from, `size_bytes` of the arena at `arena_offset`."""

    arena_offset: int
    size_bytes: int
    fd: int
    file_offset: int


@dataclass(frozen=True, slots=True)
class _NamedMemory:
    """What `make_iovec` takes for a `SharedMemory`."""

    name: str
    buf: memoryview


class UsrbioArena:
    """Owns: the arena's registration with 3FS, and a ring per direction and transfer under way."""

    def __init__(self, api: Any, mount: str, arena: memoryview) -> None:
        """Give the arena a name in shared memory for as long as 3FS takes to map it.

        Raises OSError if the arena's file is not one of SHARED_MEMORY.
        """
        self._api = api
        self._mount = mount
        self._idle: dict[bool, list[Any]] = {True: [], False: []}
        """The rings that nobody uses, by direction: True for reads."""
        self._lock = threading.Lock()

        # 3FS finds memory by its name; the mapping stands when the name is gone.
        name = f"raydix-{uuid.uuid4()}"
        _name_file(_descriptor_of(arena), name)
        try:
            self._iovec: Any = api.make_iovec(_NamedMemory(name, arena), mount)
        finally:
            (SHARED_MEMORY / name).unlink()

    def read(self, ios: Sequence[ExtentIo]) -> list[int]:
        """Bytes read or -errno, one per I/O. When it returns, 3FS touches none of the pages."""
        return self._transfer(ios, is_read=True)

    def write(self, ios: Sequence[ExtentIo]) -> list[int]:
        """Bytes written or -errno, one per I/O. When it returns, 3FS touches none of the pages."""
        return self._transfer(ios, is_read=False)

    def _transfer(self, ios: Sequence[ExtentIo], is_read: bool) -> list[int]:
        assert len(ios) <= MAX_IOS
        results = [0] * len(ios)
        if not ios:
            return results
        ring = self._take_ring(is_read)
        num_prepared = 0
        try:
            for position, io in enumerate(ios):
                part = self._iovec[io.arena_offset : io.arena_offset + io.size_bytes]
                ring.prepare(part, is_read, io.fd, io.file_offset, position)
                num_prepared += 1
        except OSError as error:
            results[num_prepared:] = [-(error.errno or errno.EIO)] * (len(ios) - num_prepared)

        # What is prepared may be under way already, and cannot be called off.
        ring.submit()
        while num_prepared:
            for done in ring.wait(
                max_results=num_prepared, min_results=num_prepared, timeout=_WAIT
            ):
                results[done.userdata] = done.result
                num_prepared -= 1
        with self._lock:
            self._idle[is_read].append(ring)
        return results

    def _take_ring(self, is_read: bool) -> Any:
        with self._lock:
            if self._idle[is_read]:
                return self._idle[is_read].pop()
        return self._api.make_ioring(
            self._mount, _RING_ENTRIES, for_read=is_read, flags=_FAIL_ON_HOLES
        )

    def close(self) -> None:
        """Take the arena back from 3FS; nothing may be under way."""
        self._idle = {True: [], False: []}
        self._iovec = None


def _name_file(descriptor: int, name: str) -> None:
    """Give an open file without a name one in SHARED_MEMORY."""
    folder = os.open(SHARED_MEMORY, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A folder's descriptor is what makes CPython call linkat, without which the link in /proc
        # is not followed.
        os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _descriptor_of(memory: memoryview) -> int:
    """The descriptor of the file that `memory` maps from its start. Raises OSError without one."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, device, inode, *_ = line.split()
        if int(addresses.partition("-")[0], 16) != address:
            continue

        major, _, minor = device.partition(":")
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                stat = os.stat(int(descriptor))
            except OSError:
                continue  # the listing's own, closed by now
            where = os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino
            if where == (int(major, 16), int(minor, 16), int(inode)):
                return int(descriptor)
    raise OSError("the arena maps no open file")
