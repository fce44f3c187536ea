"""Who may listen at a path: the holder of a lock beside the socket file.

The kernel takes the lock back when its holder ends.
"""

import contextlib
import fcntl
import os
import stat

from raydix.runtime.actors.links.link import AddressTaken

_MAX_ATTEMPTS = 100


class SocketFile:
    """Owns: the right to put a socket at a path, until `remove` or the end of the process.

    A socket that an owner left there when it died may be replaced. The socket itself cannot tell
    whether one lives: that of a stopped or busy process may refuse a connection, too. Raises
    AddressTaken.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock_path = f"{path}.lock"
        self._lock_fd = self._take_lock()

    def remove(self) -> None:
        """Remove the socket, if there is one; another listener may come."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(self._path).st_mode):
                os.unlink(self._path)

        # The lock's file goes before the lock: who opened it meanwhile finds that it is not the
        # current one.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._lock_path)
        os.close(self._lock_fd)

    def _take_lock(self) -> int:
        for _ in range(_MAX_ATTEMPTS):
            fd = os.open(
                self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                break

            if self._is_current(fd):
                return fd
            os.close(fd)
        raise AddressTaken(f"another listener lives at unix:{self._path}; it must end first")

    def _is_current(self, fd: int) -> bool:
        """Nobody has removed the lock's file since it was opened."""
        try:
            there = os.stat(self._lock_path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))
