"""How long L3 takes to answer one kind of order, and how long it may."""

from collections import deque

_NUM_TIMES = 16
_NUM_USUAL = 4
_SLACK = 2
"""An answer may take so many times as long as the slowest of the last `_NUM_TIMES`. A hang costs
requests as much, and too short a patience costs little: the late answer mends it.
"""


class AnswerTimes:
    """Owns: how long the latest answers took.

    The patience refutes itself either way. An answer that comes too late counts like any other, so
    a patience that is too short has grown once the first late answer is there. Each answer pushes
    an old one out, so a patience that is too long has shrunk after `_NUM_TIMES` answers.
    """

    def __init__(self, shortest_s: float, longest_s: float, first_s: float) -> None:
        """Keep the patience between two bounds; `first_s` is the patience before any answer."""
        self._shortest_s = shortest_s
        self.longest_s = longest_s
        self._first_s = first_s
        self._beyond_s: deque[float] = deque(maxlen=_NUM_TIMES)
        self._times_s: deque[float] = deque(maxlen=_NUM_USUAL)

    def note(self, time_s: float, allowed_s: float = 0.0) -> None:
        """Note that an answer took `time_s` seconds, `allowed_s` of which its size explains."""
        self._beyond_s.append(max(0.0, time_s - allowed_s))
        self._times_s.append(time_s)

    @property
    def patience_s(self) -> float:
        """The time in seconds that an answer may take, beyond what its size explains."""
        if not self._beyond_s:
            return self._first_s
        return min(self.longest_s, max(self._shortest_s, _SLACK * max(self._beyond_s)))

    @property
    def usual_s(self) -> float:
        """The time in seconds of the fastest of the last few answers; 0 if there was none.

        A store that is slow now and then is not a slow one, and the first fast answer shows that it
        has recovered.
        """
        return min(self._times_s, default=0.0)
