"""Folders with short paths for sockets and for a private cluster's files.

A new one first removes those whose owner was killed.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from raydix.errors import ConfigError

_ROOT = Path("/tmp")  # not the user's TMPDIR: a unix socket's path has 107 bytes at most
_PREFIX = "raydix-"
_LOCK = "owner.lock"
_MODE = 0o700


class PrivateFolder:
    """Owns: a folder that nobody else may enter, with a locked file that says its owner lives.

    The kernel keeps the lock: it ends with this process, however that ends, and holds for other pid
    namespaces, too. Anybody may put something of such a name into the temporary folder: what is not
    this user's, is open to others or lacks the file is not removed.
    """

    def __init__(self) -> None:
        """Make a new one; first remove those of dead owners. Raises ConfigError if it cannot."""
        for path, fd in _folders():
            with _dead_owner(fd) as is_dead:
                if is_dead:
                    shutil.rmtree(path, ignore_errors=True)
        try:
            while not self._make():
                pass
        except OSError as error:
            raise ConfigError(f"no folder can be made in {_ROOT}: {error.strerror}") from error

    def _make(self) -> bool:
        """Make and lock the folder; False if others removed it before it was locked."""
        self.path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_ROOT)
        lock = os.path.join(self.path, _LOCK)
        try:
            self._fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            # The disk may be full. Without the file nobody would ever remove it.
            os.rmdir(self.path)
            raise
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        if os.path.exists(lock):
            return True
        os.close(self._fd)
        return False

    def remove(self) -> None:
        """Remove the folder and all in it; nothing happens the second time."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
        self.abandon()

    def abandon(self) -> None:
        """Leave the folder to whoever removes those of dead owners. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _folders() -> Iterator[tuple[Path, int]]:
    """This user's private folders, each with a descriptor that is open for its turn."""
    for path in _ROOT.glob(f"{_PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _MODE:
                yield path, fd
        finally:
            os.close(fd)


@contextlib.contextmanager
def _dead_owner(folder: int) -> Iterator[bool]:
    """Whether the owner of a folder is known to be dead; if so, its lock is held for the block."""
    try:
        fd = _open_in(folder, _LOCK)
    except OSError:
        # There is no lock file: the folder was not made here, or not yet.
        yield False
        return

    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        is_dead = True
    except OSError:
        is_dead = False
    try:
        yield is_dead
    finally:
        os.close(fd)


def _open_in(folder: int, name: str) -> int:
    # Neither follows a link out of the folder nor waits for the other end of a pipe.
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
