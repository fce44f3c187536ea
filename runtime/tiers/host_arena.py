"""The bytes of L2: one memfd per node, mapped by every process that copies pages or stores them."""

import ctypes
import errno
import logging
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.errors import ConfigError
from raydix.ids import HostPageId
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry, plan_arena
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES, KvLayout
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.messages.arrays import Int32Array

logger = logging.getLogger(__name__)

_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it
_POPULATE_CHUNK_BYTES = 64 << 20
_SAFE_MEMORY_FRACTION = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaLocation:
    """Where a process on this host finds the arena: descriptor `fd` of process `pid`."""

    pid: int
    fd: int
    file: tuple[int, int]
    """Device and number of its file: the same memory at whichever process, and of no other."""
    geometry: ArenaGeometry


class HostArena:
    """Owns: one mapping of the arena and one file descriptor of it.

    Who may write which page is decided by `HostIndex`; this class only finds the bytes. The memory
    lives as long as any process holds a descriptor or a mapping, and has no name that could be left
    behind.
    """

    def __init__(self, fd: int, geometry: ArenaGeometry) -> None:
        """Map the whole of `fd`, which then belongs to this object."""
        self.geometry = geometry
        self.fd = fd
        self.pid = os.getpid()
        self._bytes = memoryview(mmap.mmap(fd, geometry.size_bytes))
        table = np.frombuffer(self._bytes, dtype=np.int32, count=geometry.num_host_pages)
        self._generations: NDArray[np.int32] = table

    @classmethod
    def create(
        cls, layout: KvLayout, size_bytes: int, num_threads: int = 4, folder: str | None = None
    ) -> "HostArena":
        """Make an arena with `size_bytes` of host pages and take its memory now.

        With `folder`, on a tmpfs, its file can be given a name there; it has none yet. Raises
        ConfigError if the memory is not there.
        """
        geometry = plan_arena(layout, size_bytes)
        _require_memory(geometry.size_bytes)

        if folder is None:
            fd = os.memfd_create("raydix-arena", os.MFD_CLOEXEC)
        else:
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)

        try:
            os.ftruncate(fd, geometry.size_bytes)
            arena = cls(fd, geometry)
            _populate(np.frombuffer(arena.buffer, dtype=np.uint8), num_threads)
        except BaseException:
            os.close(fd)
            raise
        return arena

    @classmethod
    def attach(cls, location: ArenaLocation) -> "HostArena":
        """Map the arena of another process of this user, through a descriptor of our own.

        Raises OSError if the process is gone, ValueError if the arena has another size than its
        geometry says.
        """
        fd = os.open(_path_of(location), os.O_RDWR | os.O_CLOEXEC)
        size_bytes = os.fstat(fd).st_size
        expected_bytes = location.geometry.size_bytes
        if size_bytes != expected_bytes:
            os.close(fd)
            raise ValueError(
                f"the arena has {size_bytes} bytes; its geometry says {expected_bytes}"
            )

        return cls(fd, location.geometry)

    @property
    def location(self) -> ArenaLocation:
        """Where other processes find this mapping's descriptor."""
        found = os.fstat(self.fd)
        file = (found.st_dev, found.st_ino)
        return ArenaLocation(pid=self.pid, fd=self.fd, file=file, geometry=self.geometry)

    def is_at(self, location: ArenaLocation) -> bool:
        """Whether this very memory, with this geometry, is found at `location`."""
        same_memory = os.path.samestat(os.stat(_path_of(location)), os.fstat(self.fd))
        return same_memory and location.geometry == self.geometry

    @property
    def users(self) -> memoryview:
        """The bytes in which HostMemory notes who uses the arena."""
        return self._bytes[self.geometry.users_offset :]

    @property
    def buffer(self) -> memoryview:
        """The whole arena, writable."""
        return self._bytes

    @property
    def generations(self) -> NDArray[np.int32]:
        """One int32 per host page id, shared by all processes; HostMemory alone writes it."""
        return self._generations

    def set_generations(self, host_page_ids: Int32Array, generations: Int32Array) -> None:
        """Write entries of the table, for all processes to see. HostMemory alone may do so."""
        self._generations[host_page_ids] = generations

    def page(self, host_page_id: HostPageId, group: int) -> memoryview:
        """Header and payload of a host page. Raises ValueError if `group` has no such page."""
        start = self.geometry.page_offset(host_page_id, group)
        return self._bytes[start : start + self.geometry.object_bytes(group)]

    def payload(self, host_page_id: HostPageId, group: int) -> memoryview:
        """The canonical page alone."""
        return self.page(host_page_id, group)[OBJECT_HEADER_BYTES:]

    def close(self) -> None:
        """Close the descriptor and drop the mapping, which ends with the last view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._generations = np.empty(0, dtype=np.int32)
        self._bytes = memoryview(b"")


def _path_of(location: ArenaLocation) -> str:
    return f"/proc/{location.pid}/fd/{location.fd}"


def _require_memory(size_bytes: int) -> None:
    available = available_memory_bytes()
    if size_bytes > available:
        proposal_mib = int(available * _SAFE_MEMORY_FRACTION) >> 20
        raise ConfigError(
            f"the host arena needs {size_bytes} bytes; {available} bytes of memory are available. "
            f"Set cache.l2.bytes_per_node to {proposal_mib}MiB or less."
        )


def _populate(bytes_: NDArray[np.uint8], num_threads: int) -> None:
    """Take memory for all of `bytes_`, in parallel.

    Page faults while serving would be slow, or fatal.
    """
    starts = range(0, len(bytes_), _POPULATE_CHUNK_BYTES)
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in pool.map(
            lambda start: _populate_chunk(bytes_[start : start + _POPULATE_CHUNK_BYTES]), starts
        ):
            pass


def _populate_chunk(chunk: NDArray[np.uint8]) -> None:
    # Through ctypes: mmap.madvise of CPython holds the interpreter lock.
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if madvise(chunk.ctypes.data, chunk.nbytes, _MADV_POPULATE_WRITE) == 0:
        return
    code = ctypes.get_errno()
    if code != errno.EINVAL:
        raise ConfigError(
            f"cannot take {chunk.nbytes} bytes of the host arena: {os.strerror(code)}. "
            "Set cache.l2.bytes_per_node to a smaller value."
        )
    logger.info("this kernel has no MADV_POPULATE_WRITE; the arena is touched page by page")
    chunk[:: mmap.PAGESIZE] = 0
