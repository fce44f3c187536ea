"""Virtual time, and one seeded generator for every delay."""

import heapq
import itertools
import math
import random
from collections.abc import Callable

_MAX_ACTIONS_AT_ONCE = 20_000
"""More at one moment is a loop that time cannot leave."""


class Clock:
    """Owns: what time it is, and what is to happen when."""

    def __init__(self, seed: int = 0) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._num_at_once = 0

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Run `action` at this time, or now if that has passed."""
        heapq.heappush(self._queue, (max(self.now_s, time_s), next(self._serial), action))

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
            time_s, _, action = heapq.heappop(self._queue)
            if time_s > limit_s:
                return False

            self._num_at_once = 0 if time_s > self.now_s else self._num_at_once + 1
            assert self._num_at_once < _MAX_ACTIONS_AT_ONCE, f"time stands still at {time_s} s"
            self.now_s = time_s
            action()
        return True
