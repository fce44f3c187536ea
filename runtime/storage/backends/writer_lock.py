"""Who is writing below a folder: a locked file for each writer says that it still lives."""

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from raydix.runtime.storage.file_modes import Modes

_LOCK_FILE = re.compile(r"writer-(?P<kernel>[0-9a-f]{32})-(?P<token>[0-9a-f]{16})\.lock")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ABANDONED_S = 3600.0
"""The age of a temporary that a dead writer must have left: no write takes a tenth of it."""
_FORGOTTEN_S = 24 * ABANDONED_S


class WriterLock:
    """Owns: a file `writer-<kernel>-<token>.lock` in a folder, locked until this process ends.

    The kernel keeps the lock, so that it holds across pid namespaces. Whether another host sees it
    depends on the file system: writers under another kernel are judged by the age of what they
    left, and so are those of other users.
    """

    def __init__(self, folder: Path, modes: Modes) -> None:
        """Raises OSError if `folder` cannot be written."""
        self.token = secrets.token_hex(8)
        self._folder = folder
        self._kernel = _kernel()
        self._path = folder / f"writer-{self._kernel}-{self.token}.lock"
        self._fd = modes.create(str(self._path))
        # Where the file system knows no locks, nobody else gets this one either, and age decides.
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def now_s(self) -> float:
        """The time of the file system, perhaps another host's, to compare files' times with."""
        os.utime(self._fd)
        return os.fstat(self._fd).st_mtime

    @contextlib.contextmanager
    def dead_writers(self) -> Iterator[frozenset[str]]:
        """The tokens of ended writers under this kernel; their lock files go with the block."""
        now_s = self.now_s()
        tokens: set[str] = set()
        old: list[str] = []
        for name in os.listdir(self._folder):
            match = _LOCK_FILE.fullmatch(name)
            if match is None or match["token"] == self.token:
                continue
            if match["kernel"] == self._kernel:
                if _is_free(self._folder / name):
                    tokens.add(match["token"])
                    old.append(name)
            elif _is_older(self._folder / name, now_s - _FORGOTTEN_S):
                old.append(name)

        yield frozenset(tokens)

        for name in old:
            with contextlib.suppress(OSError):
                os.unlink(self._folder / name)

    def close(self) -> None:
        """Remove the file: nothing of this writer is half written any more."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._fd)


def _kernel() -> str:
    """The id of the running kernel, which all its processes share; random where it is hidden."""
    try:
        text = _BOOT_ID.read_text().strip().replace("-", "")
    except OSError:
        text = ""
    return text if re.fullmatch(r"[0-9a-f]{32}", text) else secrets.token_hex(16)


def _is_free(path: Path) -> bool:
    """Whether nobody holds the lock. One that may not be tried counts as held."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_older(path: Path, time_s: float) -> bool:
    try:
        return path.stat().st_mtime < time_s
    except OSError:
        return False
