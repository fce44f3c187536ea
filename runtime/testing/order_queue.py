"""What a storage worker serves, without a link."""

import os
import queue
from collections.abc import Iterator

from raydix.runtime.storage.worker.worker import Told


class OrderQueue:
    """Orders for a `StorageWorker`, from any thread; iterated by the worker's."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Told | None] = queue.Queue()
        self._come = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._is_read = False
        """The worker has what was read last, and may not know of it yet."""

    def put(self, message: Told) -> None:
        """Order something; returns at once."""
        self._put(message)

    def wait_read(self) -> None:
        """Wait until the worker knows of all that was put."""
        self._queue.join()

    def end(self) -> None:
        """Nothing more comes."""
        self._put(None)

    def _put(self, message: Told | None) -> None:
        self._queue.put(message)
        os.eventfd_write(self._come, 1)

    @property
    def has_come(self) -> bool:
        """There is something to read, if only the end."""
        return not self._queue.empty()

    def descriptor(self) -> int:
        """The descriptor that is readable when there is something to take."""
        self._note_known()
        return self._come

    def close(self) -> None:
        """Give the descriptor back. The worker is closed."""
        os.close(self._come)

    def __iter__(self) -> Iterator[Told]:
        while (message := self._queue.get()) is not None:
            os.eventfd_read(self._come)
            self._is_read = True
            yield message
            self._note_known()

    def _note_known(self) -> None:
        if self._is_read:
            self._is_read = False
            self._queue.task_done()
