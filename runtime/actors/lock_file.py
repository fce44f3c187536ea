"""A file whose lock says that a process lives: the kernel takes it back when that one ends."""

import contextlib
import fcntl
import os

_MAX_ATTEMPTS = 100
_MAX_CONTENT_BYTES = 1 << 16


class LockHeld(Exception):
    """A living process holds the lock."""


class LockFile:
    """Owns: the lock of a file, until `remove` or the end of this process.

    Also tells living processes of other pid namespaces. Raises LockHeld.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = self._take()

    def write(self, content: bytes) -> None:
        """Let others read this as long as the lock is held: at most 64 KiB, and once."""
        os.write(self._fd, content)

    def remove(self) -> None:
        """Remove the file and give the lock back. A second call does nothing."""
        if self._fd < 0:
            return
        # The file goes before the lock: who opened it meanwhile finds that it is not the current
        # one.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._fd)
        self._fd = -1

    def _take(self) -> int:
        for _ in range(_MAX_ATTEMPTS):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                break

            if self._is_current(fd):
                # What a dead holder wrote is void.
                os.ftruncate(fd, 0)
                return fd
            os.close(fd)
        raise LockHeld(self._path)

    def _is_current(self, fd: int) -> bool:
        """Nobody has removed the file since it was opened."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))


def read_if_held(path: str) -> bytes | None:
    """What the holder of a file's lock wrote; None if nobody holds it or it is no plain file."""
    try:
        # Neither follows a link nor waits for the other end of a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None

    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(fd, _MAX_CONTENT_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    return None
