"""Virtual time, and one seeded generator for every delay."""

import heapq
import itertools
import math
import random
from collections.abc import Callable

_MAX_STEPS_AT_ONCE = 20_000
"""A longer chain of actions at one moment, each due to the one before, is a loop that time cannot
leave. Any number of them may come at one moment by themselves.
"""


class Clock:
    """Owns: what time it is, and what is to happen when."""

    def __init__(self, seed: int = 0) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)
        self._queue: list[tuple[float, int, int, Callable[[], None]]] = []
        """Each action with its time, its place among all, and its place in a chain at one moment.
        """
        self._serial = itertools.count()
        self._num_at_once = 0
        """The place of the present action in its chain."""

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Run `action` at this time, or now if that has passed."""
        is_now = time_s <= self.now_s
        due_s, place = (self.now_s, self._num_at_once + 1) if is_now else (time_s, 0)
        heapq.heappush(self._queue, (due_s, next(self._serial), place, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` once `delay_s` has passed."""
        self.at(self.now_s + delay_s, action)

    def draw(self, mean_s: float) -> float:
        """A random duration; now and then a long one."""
        scale = 10.0 if self.random.random() < 0.05 else 1.0
        return self.random.uniform(0.1, 1.9) * mean_s * scale

    def run(self, until: Callable[[], bool] | None = None, limit_s: float = math.inf) -> bool:
        """Go on until `until` holds. False: `limit_s` came first, or nothing is left to happen."""
        while self._queue and not (until is not None and until()):
            time_s, _, place, action = heapq.heappop(self._queue)
            if time_s > limit_s:
                return False

            self._num_at_once = place
            assert place < _MAX_STEPS_AT_ONCE, f"time stands still at {time_s} s"
            self.now_s = time_s
            action()
        return True
