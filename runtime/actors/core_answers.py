"""What control calls ask of the Scheduler's core, which answers with effects of its turns."""

import asyncio
from collections.abc import Callable

from raydix.runtime.scheduler.events import (
    BeginRecording,
    EndRecording,
    FlushL1,
    L1Flushed,
    RecordingTold,
    TakeRecording,
)

RecordingOrder = BeginRecording | TakeRecording | EndRecording


class CoreAnswers:
    """Owns: who waits for the core's answers. `take_now` lets the core take an event at once."""

    def __init__(self, take_now: Callable[[FlushL1 | RecordingOrder], None]) -> None:
        self._take_now = take_now
        self._flushes: list[asyncio.Future[int]] = []
        self._recorded: RecordingTold | None = None

    async def flush(self) -> int:
        """Flush L1; flushes that run at once all return the sum of their pages."""
        flush: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._flushes.append(flush)
        # Taken at once, so that an earlier flush which ends meanwhile does not answer for this one.
        self._take_now(FlushL1())
        return await flush

    def record(self, order: RecordingOrder) -> RecordingTold:
        """Carry out an order about a recording; it is answered in the turn that takes it."""
        self._take_now(order)
        assert self._recorded is not None
        assert self._recorded.name == order.name
        return self._recorded

    def hear(self, answer: L1Flushed | RecordingTold) -> None:
        """Take what the core tells."""
        match answer:
            case RecordingTold():
                self._recorded = answer
            case L1Flushed():
                flushes, self._flushes = self._flushes, []
                for flush in flushes:
                    # Whoever asked may have gone.
                    if not flush.done():
                        flush.set_result(answer.num_pages)
