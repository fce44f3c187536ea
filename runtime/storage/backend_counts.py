"""What a storage backend has done and what has failed, as `stats` tells it."""

import errno
import logging
import threading
from collections import Counter

from raydix.runtime.messages.host import ObjectStatus

logger = logging.getLogger(__name__)

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BackendCounts:
    """Owns: the counters of one backend. Thread-safe."""

    def __init__(self, subject: str) -> None:
        """`subject`: what the log calls the backend."""
        self._subject = subject
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, amount: int = 1) -> None:
        """Count something that the backend did."""
        with self._lock:
            self._counts[name] += amount

    def io_error(self, error: object) -> ObjectStatus:
        """Count an error and return its status. Only the first is logged: a store may be down."""
        with self._lock:
            self._counts["io_errors"] += 1
            is_first = self._counts["io_errors"] == 1
        if is_first:
            logger.warning("%s: %s; further errors are only counted", self._subject, error)
        return ObjectStatus.IO_ERROR

    def os_error(self, error: OSError) -> ObjectStatus:
        """Count an error of the operating system, which may be that the disk is full."""
        if error.errno in _DISK_FULL:
            self.add("disk_full")
            return ObjectStatus.FULL
        return self.io_error(error)

    def figures(self) -> dict[str, int]:
        """All counters, for `StorageBackend.stats`."""
        with self._lock:
            return dict(self._counts)
