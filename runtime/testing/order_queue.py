"""What a storage worker serves, without a link."""

import queue
from collections.abc import Iterator

from raydix.runtime.messages.host import CancelBatch
from raydix.runtime.storage.worker import Order


class OrderQueue:
    """Orders for a `StorageWorker`, from any thread; iterated by the worker's."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Order | CancelBatch | None] = queue.Queue()

    def put(self, message: Order | CancelBatch) -> None:
        """Order something; returns at once."""
        self._queue.put(message)

    def wait_read(self) -> None:
        """Until the worker knows of all that was put."""
        self._queue.join()

    def end(self) -> None:
        """Nothing more comes."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[Order | CancelBatch]:
        while (message := self._queue.get()) is not None:
            yield message
            self._queue.task_done()
