"""The one loop of an actor around a core: events wait, a turn takes them all, a timer brings the next turn."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect", covariant=True)


class Core(Protocol[Event, Effect]):
    """A state machine without I/O."""

    def handle(self, event: Event, now_s: float) -> Iterable[Effect]:
        """Take one event and say what is to be done, in order."""

    def next_deadline_s(self) -> float | None:
        """When the core wants a tick; None if time alone changes nothing."""


class Turns(Generic[Event, Effect]):
    """Owns: the events that wait for a core, and the timer of the next turn. Nothing awaits during a turn."""

    def __init__(
        self,
        tick: Event,
        carry_out: Callable[[Effect], None],
        *,
        finish: Callable[[float], float | None] = lambda now_s: None,
        on_fatal: Callable[[], None],
    ) -> None:
        """`tick`: the event for a deadline that has come. `finish(now_s)` ends each turn and may ask for the next one.

        A turn that raises is the actor's end: `on_fatal`.
        """
        self._core: Core[Event, Effect] | None = None
        self._tick = tick
        self._carry_out = carry_out
        self._finish = finish
        self._on_fatal = on_fatal
        self._waiting: list[Event] = []
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0

    def start(self, core: Core[Event, Effect]) -> None:
        """Take turns with this core from now on; no event may come before."""
        self._core = core

    def post(self, event: Event) -> None:
        """Let the next turn take an event; it comes once the loop is through with what is ready now."""
        self._waiting.append(event)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take)

    def take_now(self, event: Event) -> None:
        """Take an event, and those that wait before it, at once."""
        self._waiting.append(event)
        self._take()

    def stop(self) -> None:
        """No timer brings a turn any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _take(self) -> None:
        self._is_due = False
        try:
            core = self._core
            assert core is not None, "events come after the start"
            now_s = time.monotonic()
            events, self._waiting = self._waiting, []
            for event in events:
                for effect in core.handle(event, now_s):
                    self._carry_out(effect)
            deadline_s = core.next_deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                for effect in core.handle(self._tick, now_s):
                    self._carry_out(effect)
                deadline_s = core.next_deadline_s()
            wanted_s = self._finish(now_s)
            self._arm_timer(min((time_s for time_s in (deadline_s, wanted_s) if time_s is not None), default=None))
        except Exception:  # the actor's top loop: its state is broken
            logger.exception("a turn failed")
            self._on_fatal()

    def _arm_timer(self, deadline_s: float | None) -> None:
        if self._timer is not None:
            if deadline_s == self._timer_due_s:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_s is not None:
            self._timer_due_s = deadline_s
            delay_s = max(deadline_s - time.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._take()
