"""How far a simulation is, for people who wait for it."""

import sys
import time
from collections.abc import Callable

_INTERVAL_S = 10.0


def now_and_then(clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """What tells on standard error, every 10 s, what it is told more often."""
    told_s = clock()

    def tell(how_far: str) -> None:
        nonlocal told_s
        if clock() - told_s >= _INTERVAL_S:
            told_s = clock()
            print(how_far, file=sys.stderr, flush=True)

    return tell
