"""The steps that a rank has enqueued: their results are reported in order, once they are there."""

import os
import queue
import threading
import time
from dataclasses import dataclass, replace

from raydix.runtime.actors.gpu_model import Experts, PendingDemand, StepOutput, StepTimer
from raydix.runtime.actors.links.link import BlockingLink, send_unless_closed
from raydix.runtime.actors.steps_ahead import StepsAhead
from raydix.runtime.messages.plan import StepResult, StepsLeftOut

MAX_STEPS_IN_FLIGHT = 8
"""The most steps enqueued and not yet reported; the Scheduler plans one or two ahead."""


@dataclass(frozen=True, slots=True)
class EnqueuedStep:
    """A plan whose work is enqueued. `output` is None if no rank of its step group has rows."""

    step: int
    link: BlockingLink
    output: StepOutput | None
    timer: StepTimer | None
    demand: PendingDemand | None = None
    """The rows that each expert was given, on their way to the host; None in most steps."""


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """What the Scheduler is told before it hears of any later step."""

    link: BlockingLink
    message: StepsLeftOut


class StepResults:
    """Owns: the steps that are enqueued and not yet reported, and how many have been.

    One thread adds steps, one reports them.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        # Two of these take a fraction of the time of one that counts and waits in Python.
        self._steps: queue.SimpleQueue[EnqueuedStep | _LeftOut | None] = queue.SimpleQueue()
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()
        """A place for each step that may still be added."""
        for _ in range(MAX_STEPS_IN_FLIGHT):
            self._places.put(None)
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        """An entry for each step that has ended and that the thread which adds steps still counts.
        """
        self._woken: int | None = None
        """A descriptor at which there is something to read once a step has ended; None: the thread
        that adds steps has not waited for that yet.
        """
        self._num_open = 0
        """The steps that this thread counts as under way."""
        self._ahead = StepsAhead()
        self._waiting = threading.Lock()
        self.num_reported = 0
        self.compute_s = 0.0
        """The time that the reported steps took on the device, without their waits for loads."""

    def add(self, step: EnqueuedStep) -> None:
        """Report this step in its turn. Waits while as many as may be are in flight."""
        self._places.get()
        self._count_ended()
        self._num_open += 1
        self._steps.put(step)

    def leave_out(self, link: BlockingLink, message: StepsLeftOut) -> None:
        """Tell, once the steps added so far are reported, that these will not be added."""
        self._steps.put(_LeftOut(link, message))

    def wait_until_few(self, link: BlockingLink) -> bool:
        """Wait until so few steps are under way that the device may soon have none left.

        Returns whether a message has come, which ends the wait: what it loads may begin at once.
        """
        if self._woken is None:
            self._woken = os.eventfd(0)
        # Counted behind that: steps that end from now on are told of at the descriptor.
        self._count_ended()
        while self._num_open > self._ahead.num_steps:
            if link.wait_message_or(self._woken):
                return True
            os.eventfd_read(self._woken)
            self._count_ended()
        return link.has_message()

    def _count_ended(self) -> None:
        """Count the steps that have ended since the last time as under way no more."""
        for _ in range(self._ended.qsize()):
            self._ended.get()
            self._num_open -= 1

    def _note_ended(self) -> None:
        self._ended.put(None)
        if self._woken is not None:
            os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """No step comes any more: `report` returns after the last one."""
        self._steps.put(None)

    def wait_reported(self) -> None:
        """Wait until every step that was added has been reported."""
        # Two that wait would each have some of the places, for ever.
        with self._waiting:
            for _ in range(MAX_STEPS_IN_FLIGHT):
                self._places.get()
            for _ in range(MAX_STEPS_IN_FLIGHT):
                self._places.put(None)

    def report(self, experts: Experts) -> None:
        """Wait for each step and send its result, until `close`."""
        while (step := self._steps.get()) is not None:
            if isinstance(step, _LeftOut):
                send_unless_closed(step.link, step.message)
                continue
            try:
                self._report_step(step, experts)
            finally:
                self._places.put(None)
        # Whoever adds steps waits no more.
        if self._woken is not None:
            os.close(self._woken)
            self._woken = None

    def _wait(self, step: EnqueuedStep) -> float:
        """Wait until a step has ended; returns the time that its rows took."""
        if step.timer is None:
            self._note_ended()
            return 0.0
        began_s = time.monotonic()
        try:
            compute_s = step.timer.wait_s()
            self._ahead.note_wait(time.monotonic() - began_s, compute_s)
            return compute_s
        finally:
            # Who waits for it may enqueue another one: even before this one is reported.
            self._note_ended()

    def _report_step(self, step: EnqueuedStep, experts: Experts) -> None:
        compute_s = self._wait(step)
        if step.output is None:
            result = StepResult(rank=self._rank, step=step.step)
        else:
            result = step.output.to_result(self._rank, step.step, compute_s)
            self.compute_s += compute_s
            if step.demand is not None:
                result = replace(result, expert_demand=step.demand.to_column())

        copied = experts.take_copied()
        if len(copied):
            result = replace(result, copied_experts=copied)
        self.num_reported += 1
        send_unless_closed(step.link, result)
