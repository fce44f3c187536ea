"""An emulator of USRBIO, to the letter of its documentation: what 3FS refuses, it refuses.

It stands in for the module `hf3fs_fuse.io` and for the 3FS client, on an ordinary folder. Nothing
here shows that Raydix works on a 3FS cluster, or how fast.
"""

import errno
import mmap
import os
import threading
import uuid
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any


class Iovec:
    """Shared memory that the client has mapped by its name, whole or a slice."""

    def __init__(
        self, client: mmap.mmap, base: memoryview, offset: int = 0, link: Path | None = None
    ) -> None:
        self.client = client
        self.base = base
        self.offset = offset
        self.link = link
        self.result = 0
        self.userdata: Any = None

    def __getitem__(self, part: slice) -> "Iovec":
        start, stop, step = part.indices(len(self.base))
        assert step == 1
        return Iovec(self.client, self.base[start:stop], self.offset + start)

    def __del__(self) -> None:
        if self.link is not None:
            self.link.unlink()


@dataclass
class _Sqe:
    iov: Iovec
    is_read: bool
    fd: int
    offset: int
    userdata: Any


class Ioring:
    """A ring of `entries - 1` operations in one direction, used by one thread at a time."""

    def __init__(self, api: "UsrbioEmulator", entries: int, for_read: bool, flags: int) -> None:
        self.api = api
        self.capacity = entries - 1
        self.for_read = for_read
        self.fails_on_holes = flags == 2
        self.users = threading.Lock()
        self.changed = threading.Condition()
        self.prepared: list[_Sqe] = []
        self.done: deque[Iovec] = deque()
        self.num_under_way = 0

    def prepare(self, iov: Iovec, read: bool, fd: int, off: int, userdata: Any = None) -> "Ioring":
        assert self.users.acquire(blocking=False), "two threads prepare on one ring"
        try:
            if read != self.for_read or len(iov.base) == 0:
                raise OSError(errno.EINVAL, "wrong direction, or nothing to do")
            if fd not in self.api.registered:
                raise OSError(errno.EBADF, "the descriptor is not registered")
            if self.num_under_way == self.capacity:
                raise OSError(errno.EAGAIN, "the ring is full")
            self.num_under_way += 1
            self.prepared.append(_Sqe(iov, read, fd, off, userdata))
            return self
        finally:
            self.users.release()

    def submit(self) -> "Ioring":
        work, self.prepared = self.prepared, []
        threading.Thread(target=self._serve, args=(work,), daemon=True).start()
        return self

    def _serve(self, work: list[_Sqe]) -> None:
        """Do what the client does, in its own mapping of the memory."""
        # Operations of a batch end in any order.
        for sqe in reversed(work):
            self.api.arrived.set()
            self.api.gate.wait()
            sqe.iov.result = self._move(sqe)
            sqe.iov.userdata = sqe.userdata
            with self.changed:
                self.done.append(sqe.iov)
                self.changed.notify_all()

    def _move(self, sqe: _Sqe) -> int:
        if self.api.errors:
            return -self.api.errors.popleft()
        target = memoryview(sqe.iov.client)[sqe.iov.offset : sqe.iov.offset + len(sqe.iov.base)]
        try:
            return (
                os.preadv(sqe.fd, [target], sqe.offset)
                if sqe.is_read
                else os.pwritev(sqe.fd, [target], sqe.offset)
            )
        except OSError as error:
            return -(error.errno or errno.EIO)

    def wait(
        self, *, max_results: int = 0, min_results: int = 0, timeout: timedelta | None = None
    ) -> list[Iovec]:
        """Past `timeout`, what there is, perhaps nothing."""
        seconds = None if timeout is None else timeout.total_seconds()
        with self.changed:
            self.changed.wait_for(lambda: len(self.done) >= min_results, seconds)
            found = [
                self.done.popleft()
                for _ in range(min(max(max_results, min_results, 1), len(self.done)))
            ]
            self.num_under_way -= len(found)
        return found


@dataclass
class UsrbioEmulator:
    """Stands in for the module `hf3fs_fuse.io`; `mount` is any folder."""

    mount: Path
    registered: set[int] = field(default_factory=set)
    errors: deque[int] = field(default_factory=deque)
    """Codes with which the next operations fail."""
    gate: threading.Event = field(default_factory=threading.Event)
    """The gate before the client, which stands still while it is not set."""
    arrived: threading.Event = field(default_factory=threading.Event)
    """Set as soon as the client has taken an operation."""

    def __post_init__(self) -> None:
        (self.mount / "3fs-virt/iovs").mkdir(parents=True, exist_ok=True)
        self.gate.set()

    def extract_mount_point(self, path: str) -> str | None:
        return str(self.mount) if Path(path).is_relative_to(self.mount) else None

    def register_fd(self, fd: int) -> None:
        assert fd not in self.registered, "registered twice"
        os.fstat(fd)
        self.registered.add(fd)

    def deregister_fd(self, fd: int) -> None:
        os.fstat(fd)  # must come before the file is closed
        self.registered.remove(fd)

    def make_iovec(
        self, shm: Any, hf3fs_mount_point: str, block_size: int = 0, numa: int = -1
    ) -> Iovec:
        assert hf3fs_mount_point == str(self.mount)
        link = self.mount / "3fs-virt/iovs" / str(uuid.uuid4())
        link.symlink_to(Path("/dev/shm") / shm.name)
        with open(link, "r+b") as file:  # the client maps it now, by its name
            client = mmap.mmap(file.fileno(), 0)
        assert len(client) == len(shm.buf)
        return Iovec(client, shm.buf, link=link)

    def make_ioring(
        self,
        hf3fs_mount_point: str,
        entries: int,
        for_read: bool = True,
        *,
        io_depth: int = 0,
        flags: int = 0,
    ) -> Ioring:
        assert hf3fs_mount_point == str(self.mount)
        assert io_depth == 0
        return Ioring(self, entries, for_read, flags)

    @property
    def links(self) -> list[Path]:
        """The links of memory that is shared at present."""
        return list((self.mount / "3fs-virt/iovs").iterdir())
