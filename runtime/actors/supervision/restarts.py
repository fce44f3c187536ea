"""How often an actor may end before the engine gives up. Pure."""

from dataclasses import dataclass
from numbers import Real

from raydix.errors import ConfigError

DRAIN_S = 10.0
_MAX_DRAIN_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How the Supervisor watches and restarts actors. All durations in seconds."""

    heartbeat_interval_s: float = 2.0
    heartbeat_deadline_s: float = 20.0
    """An actor whose event loop does not answer for so long is killed."""
    bring_up_timeout_s: float = 1800.0
    """The time to load weights, to take the arena's memory and to attach."""
    open_timeout_s: float = 60.0
    """The time for a newly attached backend to open, and for each later step of attaching it."""
    exit_timeout_s: float = 60.0
    """The time for a killed process to end; one with much registered memory takes seconds."""
    drain_timeout_s: float = DRAIN_S
    """The time, at a clean stop, for requests to end, then for copies to L2, then for writes to L3.
    """
    storage_retry_s: float = 300.0
    """A storage backend whose actor ended too often is tried again so often: a start of the actor
    takes less than a hundredth of that."""
    max_crashes: int = 5
    crash_window_s: float = 300.0
    first_backoff_s: float = 0.1
    max_backoff_s: float = 10.0

    def __post_init__(self) -> None:
        """Check what users set. Raises ConfigError."""
        drain_s = self.drain_timeout_s
        is_number = isinstance(drain_s, Real) and not isinstance(drain_s, bool)
        if not is_number or not 0 <= drain_s <= _MAX_DRAIN_S:
            raise ConfigError(
                f"drain_s is {drain_s!r:.80}; expected a number of seconds, 0 or more, at most "
                f"{_MAX_DRAIN_S:g}."
            )


class CrashHistory:
    """Owns: when one actor ended lately.

    That it cannot be kept is tested by its last restart, and ends the engine, but for storage,
    which is tried again; that it can be kept, by each further end.
    """

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._times_s: list[float] = []

    def record(self, now_s: float) -> float | None:
        """Note an end. Returns the seconds until the restart; None if it ended too often."""
        settings = self._supervision
        self._times_s = [
            time_s for time_s in self._times_s if now_s - time_s < settings.crash_window_s
        ]
        self._times_s.append(now_s)

        if len(self._times_s) > settings.max_crashes:
            return None
        # A single end counts as an accident, with no wait; each further one doubles it.
        if len(self._times_s) == 1:
            return 0.0
        return min(
            settings.first_backoff_s * 2.0 ** (len(self._times_s) - 2), settings.max_backoff_s
        )
