"""Links between processes, and the turns in which a process takes what its links bring."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from raydix.ids import ConnectionId
from raydix.runtime.foresight.simulator.clock import Clock

DrawTime = Callable[[], float]
"""Draws seconds by chance, or tells those that it always takes."""
DrawSize = Callable[[int], int]
"""Says how many of so many events a core hears before it decides: one at least."""


class End(StrEnum):
    """Who is meant: the process that has dialled, or the one that was."""

    DIALLER = "dialler"
    ACCEPTOR = "acceptor"


class Link:
    """One connection. Owns: whether it is open, and in what order its messages arrive.

    What is under way when it closes is lost, in both directions. Each end notices the close by
    itself.
    """

    def __init__(self, clock: Clock, draw_delay_s: DrawTime, number: ConnectionId) -> None:
        """`draw_delay_s`: how long a message is on its way."""
        self.number = number
        self.is_open = True
        self._clock = clock
        self._draw_delay_s = draw_delay_s
        self._free_s = dict.fromkeys(End, 0.0)
        """When each end can be reached: nothing arrives before what was sent before it."""
        self._receive: dict[End, Callable[[Any], None]] = {}
        self._notice: dict[End, Callable[[], None]] = {}

    def listen(self, end: End, receive: Callable[[Any], None], notice: Callable[[], None]) -> None:
        """From now on `end` takes messages by `receive`, and hears of the end by `notice`."""
        self._receive[end], self._notice[end] = receive, notice

    def send(self, to: End, message: object) -> None:
        """A message is on its way."""
        if self.is_open:
            self._clock.at(
                self._arrival_s(to),
                lambda: self._receive[to](message) if self.is_open else None,
            )

    def carry(self, to: End, action: Callable[[], None]) -> None:
        """Run `action` when a message would arrive; never if the link closes before."""
        if self.is_open:
            self._clock.at(self._arrival_s(to), lambda: action() if self.is_open else None)

    def _arrival_s(self, to: End) -> float:
        """When what is sent now arrives: not before what was sent before it."""
        arrival_s = max(self._clock.now_s + self._draw_delay_s(), self._free_s[to])
        self._free_s[to] = arrival_s
        return arrival_s

    def hold_up(self, to: End, until_s: float) -> None:
        """Nothing that is sent from now on arrives before `until_s`."""
        self._free_s[to] = max(self._free_s[to], until_s)

    def close(self) -> None:
        """Both ends notice, sooner or later."""
        if not self.is_open:
            return
        self.is_open = False
        for notice in self._notice.values():
            self._clock.after(self._draw_delay_s(), notice)


class Turns:
    """Owns: the events that wait for a core, and when it wants a tick.

    A link is known to its process as soon as it is there, while what it brought waits for the next
    turn: so a core speaks to links that have been replaced in the meantime.
    """

    def __init__(
        self,
        clock: Clock,
        draw_turn_s: DrawTime,
        draw_size: DrawSize,
        take: Callable[[Sequence[Any]], None],
        next_deadline_s: Callable[[], float | None],
        tick: object,
    ) -> None:
        """`draw_turn_s`: how long what has come waits for the next turn. `take` lets the core hear
        some events and decide; `tick` is the one it wants by `next_deadline_s`.
        """
        self._clock = clock
        self._draw_turn_s = draw_turn_s
        self._draw_size = draw_size
        self._take = take
        self._next_deadline_s = next_deadline_s
        self._tick = tick
        self._inbox: list[object] = []
        self._tick_s = float("inf")
        self._is_stopped = False

    def post(self, event: object) -> None:
        """An event waits for the next turn."""
        if self._is_stopped:
            return
        self._inbox.append(event)
        if len(self._inbox) == 1:
            self._clock.after(self._draw_turn_s(), self._take_all)

    def take_now(self, event: object) -> None:
        """The core takes this event at once, before those that wait."""
        self._take_together([event])

    def stop(self) -> None:
        """The process is gone, and what waited with it."""
        self._is_stopped = True

    def _take_all(self) -> None:
        posted, self._inbox = self._inbox, []
        while posted:
            size = self._draw_size(len(posted))
            self._take_together(posted[:size])
            del posted[:size]

    def _take_together(self, events: Sequence[object]) -> None:
        if not self._is_stopped:
            self._take(events)
            self._plan_tick()

    def _plan_tick(self) -> None:
        due_s = self._next_deadline_s()
        if due_s is not None and due_s < self._tick_s:
            self._tick_s = due_s
            self._clock.at(due_s, lambda: self._give_tick(due_s))

    def _give_tick(self, due_s: float) -> None:
        # One that was planned for later than another one has been replaced by that.
        if self._tick_s == due_s:
            self._tick_s = float("inf")
            self.take_now(self._tick)
