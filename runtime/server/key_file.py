"""The keys that a file holds now: whoever adds or withdraws one need not restart the server."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.server.keys import Access, Caller, Verdict, load_keys

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0

Stamp = tuple[int, int, int]
"""The numbers that tell one content of a file from the next."""


class KeyFile:
    """Owns: the keys of a file, which is read again when it has changed.

    One that cannot be used then leaves the former keys in force. Can be pickled.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError if the file cannot be used."""
        self._path = path.absolute()
        self._clock = clock
        self._stamp = _stamp_of(self._path)
        self._keys = load_keys(self._path)
        self._next_look_s = clock() + LOOK_EVERY_S

    @property
    def path(self) -> Path:
        """Where the keys are read."""
        return self._path

    def __getstate__(self) -> dict[str, object]:
        """Leave the clock out, which means nothing on another host.

        A copy looks at the file when it is first asked.
        """
        return self.__dict__ | {"_next_look_s": 0.0}

    def judge(self, access: Access, key: str | None) -> Caller | Verdict:
        """Tell who calls by the key that a request brings, as `KeyJudge.judge` says."""
        now_s = self._clock()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_EVERY_S
            self._look()
        return self._keys.judge(access, key)

    def _look(self) -> None:
        # Taken before the file is read: what is written meanwhile is seen the next time.
        stamp = _stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = load_keys(self._path)
        except ConfigError as error:
            logger.error("the former keys stay in force: %s", error)
        else:
            logger.info("the keys of %s have been read again", self._path)


def _stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file; None: there is no such file, or it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    # Also the time of its inode: chmod changes that alone.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino
