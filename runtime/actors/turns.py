"""The one loop of an actor around a core: events wait, a turn takes as many as a short time allows.

The core hears all that wait before it decides, so that what ranks say at once is answered at once
by one plan. While many wait it decides now and then, as devices may wait for what it decides.

A deadline is judged only after the actor has listened: what its peers had sent by then is taken
first, however long the actor itself was busy. Time that passes in its own turn is nobody's silence:
what a long turn asked went out at its end, so its peers get as long to answer as it lasted.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

_QUIET_PASSES = 4
"""The passes of the event loop without an event after which peers are silent: one reads the
sockets, one wakes their readers, whose events count in the next, and one is to spare.
"""
_MAX_PASSES = 16
"""The most passes by which peers that never stop talking delay a deadline."""
_MAX_HEARING_S = 0.001
"""The time after which a core decides about what it has heard, though more events wait."""
_MAX_TURN_S = 0.005
"""The time after which a turn takes no further event, to read the sockets."""
_LONG_TURN_S = 0.01
"""The time below which a turn costs a peer no time worth counting."""
_MAX_GRACE_S = 0.5
"""The most by which long turns delay a deadline."""

Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect", covariant=True)


class Core(Protocol[Event, Effect]):
    """A state machine without I/O."""

    def hear(self, event: Event, now_s: float) -> None:
        """Take note of one event."""

    def decide(self, now_s: float) -> Iterable[Effect]:
        """Say what is to be done about all that was heard, in order."""

    def next_deadline_s(self) -> float | None:
        """When the core wants a tick; None if time alone changes nothing."""


class Turns(Generic[Event, Effect]):
    """Owns: the events that wait for a core, and the timer that brings the next turn.

    The tick comes alone in its turn, after passes of the event loop that have brought no event.
    """

    def __init__(
        self,
        tick: Event,
        carry_out: Callable[[Effect], None],
        *,
        finish: Callable[[float], float | None] = lambda now_s: None,
        on_fatal: Callable[[], None],
    ) -> None:
        """`tick`: the event for a deadline that has come; what was heard before is taken first.

        `finish(now_s)` ends each turn and may ask for the next one. A turn that raises is the
        actor's end: `on_fatal`.
        """
        self._core: Core[Event, Effect] | None = None
        self._tick = tick
        self._carry_out = carry_out
        self._finish = finish
        self._on_fatal = on_fatal

        self._waiting: deque[Event] = deque()
        self._num_posted = 0
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._not_before_s = 0.0
        """The time until which peers may answer what a long turn asked of them."""

        self._is_listening = False
        self._has_heard = False
        self._num_passes = 0
        self._num_quiet = 0
        self._num_heard: int | None = None
        """The number of events that had come when the loop had listened for long enough."""
        self._is_stopped = False

    def start(self, core: Core[Event, Effect]) -> None:
        """Take turns with this core from now on; no event may come before."""
        self._core = core

    def post(self, event: Event) -> None:
        """Let the next turn take an event: as soon as the loop has done what is ready now."""
        self._add(event)
        self._come_back()

    def _add(self, event: Event) -> None:
        self._waiting.append(event)
        self._num_posted += 1

    def _come_back(self) -> None:
        """Events wait for the next turn."""
        self._has_heard = True
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take)

    def take_now(self, event: Event) -> None:
        """Take an event, and those that wait before it, at once."""
        self._add(event)
        while self._waiting:
            self._take()

    def stop(self) -> None:
        """Nothing but an event brings a turn any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self) -> None:
        """Take a turn with the events that wait."""
        self._is_due = False
        self._turn(self._waiting)

    def _turn(self, events: deque[Event]) -> None:
        try:
            core = self._core
            assert core is not None, "events come after the start"
            now_s = time.monotonic()
            while events:
                _hear_some(core, events, now_s)
                for effect in core.decide(now_s):
                    self._carry_out(effect)
                if time.monotonic() - now_s >= _MAX_TURN_S:
                    break

            wanted_s = self._finish(now_s)
            self._note_end(now_s)
            self._await_next(wanted_s)
            if self._waiting:
                self._come_back()
        except Exception:  # the actor's top loop: its state is broken
            logger.exception("a turn failed")
            self._waiting.clear()
            self._on_fatal()

    def _note_end(self, began_s: float) -> None:
        ended_s = time.monotonic()
        if ended_s - began_s >= _LONG_TURN_S:
            self._not_before_s = ended_s + (ended_s - began_s)

    def _await_next(self, wanted_s: float | None) -> None:
        """Listen if a deadline of the core has come, and set the timer for the next one."""
        judged_s = self._judged_s()
        if judged_s is not None and judged_s <= time.monotonic():
            judged_s = None
            self._listen()
        self._arm_timer(
            min((time_s for time_s in (judged_s, wanted_s) if time_s is not None), default=None)
        )

    def _arm_timer(self, due_s: float | None) -> None:
        if self._timer is not None:
            if due_s == self._timer_due_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None and not self._is_stopped:
            self._timer_due_s = due_s
            delay_s = max(due_s - time.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        """Note that a deadline of the core has come, or the time that `finish` wanted."""
        self._timer = None
        if self._is_core_due():
            self._listen()
        else:
            self._take()

    def _listen(self) -> None:
        if not self._is_listening and not self._is_stopped:
            self._is_listening = True
            self._has_heard = False
            self._num_passes = self._num_quiet = 0
            self._num_heard = None
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        """Count a pass of the event loop; judge the deadline after enough that brought nothing.

        What was heard until then is taken first, in turns of its own, and may make the tick
        needless.
        """
        self._num_passes += 1
        self._num_quiet = 0 if self._has_heard else self._num_quiet + 1
        self._has_heard = False
        if self._is_stopped:
            return
        if self._num_quiet < _QUIET_PASSES and self._num_passes < _MAX_PASSES:
            asyncio.get_running_loop().call_soon(self._pass)
            return

        if self._num_heard is None:
            self._num_heard = self._num_posted
        if self._num_posted - len(self._waiting) < self._num_heard:
            asyncio.get_running_loop().call_soon(self._pass)
            return

        self._is_listening = False
        self._turn(deque([self._tick] if self._is_core_due() else []))

    def _is_core_due(self) -> bool:
        judged_s = self._judged_s()
        return judged_s is not None and judged_s <= time.monotonic()

    def _judged_s(self) -> float | None:
        """When the core's next deadline is judged."""
        deadline_s = None if self._core is None else self._core.next_deadline_s()
        if deadline_s is None:
            return None
        return max(deadline_s, min(self._not_before_s, deadline_s + _MAX_GRACE_S))


def _hear_some(core: Core[Event, Effect], events: deque[Event], now_s: float) -> None:
    """Let a core hear the events that wait, or as many of them as a short time allows."""
    until_s = time.monotonic() + _MAX_HEARING_S
    while events:
        core.hear(events.popleft(), now_s)
        if time.monotonic() >= until_s:
            return
