"""What a storage backend has done and what has failed, as `stats` tells it."""

import errno
import logging
import threading
from collections import Counter

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.last_error import ErrorLog, LastError

logger = logging.getLogger(__name__)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers that stand for want of room."""


class BackendCounts:
    """Owns: the counters of one backend, and its last error. Thread-safe."""

    def __init__(self, subject: str) -> None:
        """`subject`: what errors call the backend; it holds no password."""
        self._subject = subject
        self._counts: Counter[str] = Counter()
        self._errors = ErrorLog()
        self._lock = threading.Lock()

    def add(self, name: str, amount: int = 1) -> None:
        """Count something that the backend did."""
        with self._lock:
            self._counts[name] += amount

    def io_error(self, error: object, num_objects: int = 1) -> ObjectStatus:
        """Count an error and return its status. Only the first is logged: a store may be down."""
        text = self._note(error, num_objects)
        with self._lock:
            is_first = not self._counts["io_errors"]
            self._counts["io_errors"] += num_objects
        if is_first:
            logger.warning("%s; further errors are only counted", text)
        return ObjectStatus.IO_ERROR

    def os_error(self, error: OSError) -> ObjectStatus:
        """Count an error of the operating system, which may be that the disk is full."""
        if error.errno in DISK_FULL:
            return self.disk_full(error)
        return self.io_error(error)

    def disk_full(self, error: object) -> ObjectStatus:
        """Count that there was no room on the disk. Only the first time is logged: it may last."""
        text = self._note(error, 1)
        with self._lock:
            is_first = not self._counts["disk_full"]
            self._counts["disk_full"] += 1
        if is_first:
            logger.warning(
                "%s; pages for which there is no room are not stored. Make room, or lower "
                "cache.l3.max_bytes; further ones are only counted",
                text,
            )
        return ObjectStatus.FULL

    def timeout(self, error: object) -> ObjectStatus:
        """Count that the store did not answer in time, and return its status."""
        self.add("timeouts")
        self._note(error, 1)
        return ObjectStatus.TIMED_OUT

    def _note(self, error: object, num_errors: int) -> str:
        text = f"{self._subject}: {error}"
        self._errors.note(text, num_errors)
        return text

    @property
    def last_error(self) -> LastError | None:
        """The last error, as `StorageBackend.last_error` returns it."""
        return self._errors.last

    def figures(self) -> dict[str, int]:
        """All counters, for `StorageBackend.stats`."""
        with self._lock:
            return dict(self._counts)
