"""Finished transfers on their way to the Scheduler: all that have gathered go in one frame."""

import queue
import threading
from collections.abc import Sequence
from typing import Any

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import TransfersDone
from raydix.runtime.tiers.transfers import TransferDone


class TransferReports:
    """Owns: transfers that are complete and not yet reported.

    The Scheduler has so many in flight at most.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._queue: queue.SimpleQueue[TransferDone | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._num_added = 0
        self._num_sent = 0
        self._num_taken = 0
        self._num_stale = 0
        self._loaded_bytes = 0
        self._loading_s = 0.0
        self._counted_until_s = 0.0

    def add(self, done: TransferDone) -> None:
        """Note that a transfer is complete. Called from any thread; never waits."""
        with self._changed:
            self._num_added += 1
        self._queue.put(done)

    def take(self) -> TransfersDone | None:
        """Wait for finished transfers; returns all there are. None after `close`."""
        batch: list[TransferDone] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if self._queue.empty():
                return self._message(batch)
            item = self._queue.get()

        # Closed behind these: they go first, and the next call sees the end.
        if batch:
            self._queue.put(None)
            return self._message(batch)
        return None

    def sent(self) -> None:
        """Note that what was taken last has been sent, or that nobody is there to take it."""
        with self._changed:
            self._num_sent = self._num_taken
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all that was added before has been sent."""
        with self._changed:
            target = self._num_added
            self._changed.wait_for(lambda: self._num_sent >= target)

    def close(self) -> None:
        """End `take` once it has returned what was added before."""
        self._queue.put(None)

    def stats(self) -> dict[str, Any]:
        """Counters since the start."""
        return {
            "num_transfers": self._num_added,
            "num_stale_transfers": self._num_stale,
            "loaded_bytes": self._loaded_bytes,
            "loading_s": self._loading_s,
        }

    def _message(self, batch: Sequence[TransferDone]) -> TransfersDone:
        loads = [done for done in batch if done.num_bytes]
        stale = [done.transfer_id for done in batch if done.is_stale]
        num_bytes, seconds = sum(done.num_bytes for done in loads), self._count_busy_s(loads)

        self._num_taken += len(batch)
        self._num_stale += len(stale)
        self._loaded_bytes += num_bytes
        self._loading_s += seconds

        return TransfersDone(
            rank=self._rank,
            transfer_ids=int32_array(done.transfer_id for done in batch),
            stale_transfer_ids=int32_array(stale),
            num_bytes=num_bytes,
            seconds=seconds,
        )

    def _count_busy_s(self, loads: Sequence[TransferDone]) -> float:
        """Time in which one of these loads was under way that no earlier report has counted."""
        busy_s = 0.0
        for done in sorted(loads, key=lambda done: done.started_s):
            began_s = max(done.started_s, self._counted_until_s)
            if done.ended_s > began_s:
                busy_s += done.ended_s - began_s
                self._counted_until_s = done.ended_s
        return busy_s
