"""When a dialler tries again, and how long each attempt may take. Pure."""

from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S

FIRST_ATTEMPT_S = 3.0
"""What the first attempt may take at least: a host that is far or busy answers within it."""
_LAST_ATTEMPT_S = 0.1
"""What each may take at least: the last one is made when the time is over."""
_FIRST_PAUSE_S = 0.01
_MAX_PAUSE_S = 0.5


class Attempts:
    """Owns: how far it has come to dial one address, by the clock that it is told.

    All attempts end `timeout_s` after the first one began, but for what an attempt takes at least.
    """

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._began_s = now_s
        self._end_s = now_s + timeout_s
        self._least_s = FIRST_ATTEMPT_S
        self._pause_s = _FIRST_PAUSE_S

    def bound_s(self, now_s: float) -> float:
        """How long an attempt may take that begins now."""
        return min(HANDSHAKE_S, max(self._end_s - now_s, self._least_s))

    def fail(self, now_s: float) -> float | None:
        """An attempt has failed. Returns the pause before the next one; None: it was the last."""
        left_s = self._end_s - now_s
        if left_s <= 0:
            return None
        self._least_s = _LAST_ATTEMPT_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _MAX_PAUSE_S)
        return min(pause_s, left_s)

    def end(self, address: str, error: OSError, now_s: float) -> LinkClosed:
        """What to raise if nothing is tried any more, where the last attempt failed by `error`."""
        after = f"at {address} after {now_s - self._began_s:.1f} s"
        if isinstance(error, TimeoutError):
            return LinkClosed(
                f"nobody answers {after}; see whether the host is up and can be reached from here"
            )
        return LinkClosed(f"nobody listens {after}: {error}")
