"""How many engines a service is to have, by how long a new request would wait. Pure.

The predicted wait is what is queued over the rate at which engines have begun requests. It grows
where engines are too few, and is none where they are enough or too many, so that it says when to
add one. When to end one says what is running: whether one engine fewer could hold all of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRule:
    """How few and how many engines there may be, and when their number changes."""

    fewest: int
    most: int
    wait_s: float = 2.0
    """The predicted wait of a new request beyond which there are too few engines."""
    crowded_s: float = 5.0
    """The time for which it has to be so before one more starts."""
    idle_s: float = 60.0
    """The time for which one fewer would do before one ends."""
    full_fraction: float = 0.5
    """The part of the slots of the engines that are left which may be taken for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine tells of itself."""

    num_waiting: int
    num_running: int
    num_begun: int
    """Requests that have begun to run since the engine started."""


def load_of(figures: Mapping[str, Any]) -> EngineLoad:
    """The load of an engine by the figures of its Scheduler."""
    return EngineLoad(
        num_waiting=figures["num_requests_waiting"],
        num_running=figures["num_requests_running"] + figures["num_requests_loading"],
        num_begun=sum(figures["queue_times"]["counts"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """What the engines that serve have to do together."""

    num_serving: int
    num_silent: int = 0
    """Engines among these that have not said what they have to do."""
    num_running: int
    num_waiting: int
    begun_per_s: float
    num_slots: int
    """The most requests that one engine runs at once."""

    @property
    def wait_s(self) -> float:
        """How long a new request would wait for its turn."""
        if self.num_waiting == 0:
            return 0.0
        return self.num_waiting / self.begun_per_s if self.begun_per_s > 0 else math.inf

    def fits(self, num_engines: int, fraction: float) -> bool:
        """Whether so many engines could run all of it in this part of their slots.

        Of what an engine that says nothing has to do nobody knows: it may be too busy to say it.
        """
        num_requests = self.num_running + self.num_waiting
        if self.num_silent or self.num_waiting:
            return False
        return num_requests <= fraction * num_engines * self.num_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many engines are wanted, and since when another number seems right."""

    num_wanted: int
    crowded_since_s: float | None = None
    idle_since_s: float | None = None


def next_scale(scale: Scale, load: ServiceLoad, rule: ScaleRule, now_s: float) -> Scale:
    """The scale by what is seen now: one engine more or fewer at a time.

    None is added while one that is wanted does not serve yet, as it may be enough.
    """
    num_wanted = min(max(scale.num_wanted, rule.fewest), rule.most)
    if num_wanted != scale.num_wanted:
        return Scale(num_wanted=num_wanted)

    crowded_s = idle_s = None
    num_left = min(load.num_serving, num_wanted) - 1
    if load.wait_s > rule.wait_s:
        if load.num_serving >= num_wanted and num_wanted < rule.most:
            crowded_s = now_s if scale.crowded_since_s is None else scale.crowded_since_s
    elif num_wanted > rule.fewest and load.fits(num_left, rule.full_fraction):
        idle_s = now_s if scale.idle_since_s is None else scale.idle_since_s

    if crowded_s is not None and now_s - crowded_s >= rule.crowded_s:
        return Scale(num_wanted=num_wanted + 1)
    if idle_s is not None and now_s - idle_s >= rule.idle_s:
        return Scale(num_wanted=num_wanted - 1)
    return replace(scale, crowded_since_s=crowded_s, idle_since_s=idle_s)


class Scaler:
    """Owns: how many engines a service wants at the moment, and how fast they begin requests."""

    def __init__(self, rule: ScaleRule, num_slots: int) -> None:
        """`num_slots`: the most requests that one engine runs at once."""
        self._rule = rule
        self._num_slots = num_slots
        self._pace = Pace()
        self._scale = Scale(num_wanted=rule.fewest)

    @property
    def num_wanted(self) -> int:
        """How many engines there are to be."""
        return self._scale.num_wanted

    @property
    def is_fixed(self) -> bool:
        """Whether that never changes."""
        return self._rule.fewest == self._rule.most

    def begin_with(self, num_engines: int) -> None:
        """Want as many as an earlier version has, within the bounds."""
        self._scale = Scale(num_wanted=min(max(num_engines, self._rule.fewest), self._rule.most))

    def note(self, loads: Mapping[str, EngineLoad], num_serving: int, now_s: float) -> ServiceLoad:
        """Judge by the loads of the engines that have told theirs; returns what they are in all.

        `num_serving`: how many engines serve, those that have told nothing among them.
        """
        self._pace.note(loads, now_s)
        load = ServiceLoad(
            num_serving=num_serving,
            num_silent=max(0, num_serving - len(loads)),
            num_running=sum(each.num_running for each in loads.values()),
            num_waiting=sum(each.num_waiting for each in loads.values()),
            begun_per_s=self._pace.begun_per_s(),
            num_slots=self._num_slots,
        )
        self._scale = next_scale(self._scale, load, self._rule, now_s)
        return load


class Pace:
    """Owns: how many requests each engine had begun at the times when it was asked lately."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._seen: dict[str, list[tuple[float, int]]] = {}

    def note(self, loads: Mapping[str, EngineLoad], now_s: float) -> None:
        """Note what the engines say now; those that say nothing are forgotten."""
        former = self._seen
        self._seen = {}
        for name, load in loads.items():
            seen = former.get(name, [])
            # A Scheduler that was restarted counts from zero.
            if seen and load.num_begun < seen[-1][1]:
                seen = []
            kept = [each for each in seen if now_s - each[0] <= self._window_s]
            self._seen[name] = [*kept, (now_s, load.num_begun)]

    def begun_per_s(self) -> float:
        """Requests that engines begin per second, all together."""
        return sum(_slope(seen) for seen in self._seen.values())


def _slope(seen: list[tuple[float, int]]) -> float:
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
