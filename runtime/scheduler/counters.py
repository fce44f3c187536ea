"""What the Scheduler counts and times, each figure declared once."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from raydix.runtime.messages.client import FailureKind, FinishReason
from raydix.runtime.metrics import (
    REQUEST_BOUNDS_S,
    TOKEN_BOUNDS_S,
    TRANSFER_BOUNDS_S,
    Histogram,
)


class Count(StrEnum):
    """A number of things that happened; the value is the name of its figure."""

    PLANS = "num_plans"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    PREFETCHES = "prefetches"
    """The number of prefetch hints that were answered."""
    RETRACTED_REQUESTS = "retracted_requests"
    LOAD_DECISIONS = "load_decisions"
    RECOMPUTE_DECISIONS = "recompute_decisions"
    REPEATED_LOOKUPS = "repeated_lookups"
    EVICTED_PAGES = "evicted_pages"
    DROPPED_PAGES = "dropped_pages"
    """The number of evicted pages that L2 did not hold: they are lost."""
    LOADED_PAGES = "loaded_pages"
    PROMOTED_PAGES = "promoted_pages"
    """The number of pages that were loaded while their request still waited."""
    STALE_LOADS = "stale_loads"
    BACKED_UP_PAGES = "backed_up_pages"
    BACKUP_QUEUE_FULL = "backup_queue_full"
    WRONG_TIMES = "wrong_times"
    """Reports of ranks that a step or copy took less than no time, or impossibly long."""
    LOST_RANKS = "lost_ranks"
    LOST_HOSTS = "lost_hosts"
    HOST_SILENCES = "host_silences"


class Duration(StrEnum):
    """Seconds that are added up; the value is the name of the figure."""

    COMPUTE = "compute_s"
    COPY = "copy_s"


class Timing(StrEnum):
    """Seconds whose distribution is kept; the value is the name of the figure."""

    FIRST_TOKEN = "first_token_times"
    OUTPUT_TOKEN = "output_token_times"
    """The mean time per output token after the first, in seconds: one value per request."""
    QUEUE = "queue_times"
    REQUEST = "request_times"
    LOAD = "load_times"
    BACKUP = "backup_times"

    @property
    def bounds_s(self) -> tuple[float, ...]:
        """The bounds, in seconds, between which the values of this timing are counted."""
        match self:
            case Timing.FIRST_TOKEN | Timing.QUEUE | Timing.REQUEST:
                return REQUEST_BOUNDS_S
            case Timing.OUTPUT_TOKEN:
                return TOKEN_BOUNDS_S
            case Timing.LOAD | Timing.BACKUP:
                return TRANSFER_BOUNDS_S


class Prediction(StrEnum):
    """What is predicted before it is done, so that loading can be weighed against computing."""

    LOAD = "load"
    PREFILL = "prefill"


class Counters:
    """Owns: how often things have happened since the Scheduler started. Figures only grow."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(Count, 0))
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, what: Count, number: int = 1) -> None:
        """Add `number` to a count."""
        self._counts[what] += number

    def add_s(self, what: Duration, seconds: float) -> None:
        """Add seconds to a sum."""
        self._seconds[what] += seconds

    def count_end(self, reason: FinishReason) -> None:
        """Count a request that ended well, by its reason."""
        self._counts[f"finished_{reason.value}"] += 1

    def count_failure(self, kind: FailureKind) -> None:
        """Count a request that ended with an error, or was refused."""
        self._counts[f"failed_{kind.name.lower()}"] += 1

    def count_sources(self, tokens_by_source: Mapping[str, int]) -> None:
        """Count prompt tokens by source, once the client was told where they came from."""
        for source, num_tokens in tokens_by_source.items():
            self._counts[f"prompt_tokens_{source}"] += num_tokens

    def count_prediction(self, what: Prediction, predicted_s: float, measured_s: float) -> None:
        """Compare a predicted duration with the measured one."""
        self._counts[f"predicted_{what}s"] += 1
        self._seconds[f"{what}_predicted_s"] += predicted_s
        self._seconds[f"{what}_measured_s"] += measured_s
        self._seconds[f"{what}_error_s"] += abs(predicted_s - measured_s)

    def count_eviction(self, num_pages: int, *, num_dropped: int) -> None:
        """Count evicted pages; `num_dropped` of them have no copy in L2."""
        self.count(Count.EVICTED_PAGES, num_pages)
        if num_dropped:
            self.count(Count.DROPPED_PAGES, num_dropped)

    def figures(self) -> dict[str, float]:
        """All counts and seconds, by name."""
        named = {str(name): number for name, number in self._counts.items()}
        return {**named, **{str(name): seconds for name, seconds in self._seconds.items()}}


class Timings:
    """Owns: the distributions of how long things took since the Scheduler started."""

    def __init__(self) -> None:
        self._times = {timing: Histogram(timing.bounds_s) for timing in Timing}

    def observe(self, what: Timing, seconds: float) -> None:
        """Add one value to a distribution."""
        self._times[what].observe(seconds)

    def observe_completion(self, *, num_later: int, later_s: float, total_s: float) -> None:
        """Record a complete request: `num_later` tokens followed the first one, in `later_s`."""
        self.observe(Timing.REQUEST, total_s)
        if num_later:
            self.observe(Timing.OUTPUT_TOKEN, later_s / num_later)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Every distribution, by name."""
        return {timing.value: histogram.figure() for timing, histogram in self._times.items()}


class CopyTimes:
    """Owns: the seconds that each rank of a lane has spent copying pages."""

    def __init__(self, ranks: range) -> None:
        self._seconds = dict.fromkeys(ranks, 0.0)

    def add(self, rank: int, seconds: float) -> None:
        """Add to the seconds of a rank."""
        self._seconds[rank] += seconds

    @property
    def total_s(self) -> float:
        """The seconds of all ranks together."""
        return sum(self._seconds.values())

    def figures(self) -> list[dict[str, float]]:
        """The seconds of each rank, by name."""
        return [{Duration.COPY.value: seconds} for seconds in self._seconds.values()]
