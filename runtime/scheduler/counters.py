"""What the Scheduler counts, each figure declared once."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import StrEnum

from raydix.runtime.messages.client import FailureKind, FinishReason


class Count(StrEnum):
    """A number of things that happened; the value is the name of its figure."""

    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    FIRST_TOKENS = "first_tokens"
    LATER_TOKENS = "later_tokens"
    COMPLETE_REQUESTS = "complete_requests"
    RETRACTED_REQUESTS = "retracted_requests"
    LOAD_DECISIONS = "load_decisions"
    RECOMPUTE_DECISIONS = "recompute_decisions"
    REPEATED_LOOKUPS = "repeated_lookups"
    EVICTED_PAGES = "evicted_pages"
    DROPPED_PAGES = "dropped_pages"
    """Those of the evicted pages that L2 did not hold: they are lost."""
    LOADED_PAGES = "loaded_pages"
    PROMOTED_PAGES = "promoted_pages"
    """Those of the loaded pages whose request still waited."""
    STALE_LOADS = "stale_loads"
    BACKED_UP_PAGES = "backed_up_pages"
    BACKUP_QUEUE_FULL = "backup_queue_full"
    LOST_RANKS = "lost_ranks"
    LOST_HOSTS = "lost_hosts"
    HOST_SILENCES = "host_silences"


class Duration(StrEnum):
    """Seconds that are added up; the value is the name of the figure."""

    COMPUTE = "compute_s"
    COPY = "copy_s"
    FIRST_TOKEN = "first_token_s"
    LATER_TOKENS = "later_tokens_s"
    COMPLETE_REQUESTS = "complete_requests_s"


class Prediction(StrEnum):
    """What is predicted before it is done, so that loading can be weighed against computing."""

    LOAD = "load"
    PREFILL = "prefill"


class Counters:
    """Owns: how often things have happened since the Scheduler started. Figures only grow."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, what: Count, number: int = 1) -> None:
        """It happened once, or so many times."""
        self._counts[what] += number

    def add_s(self, what: Duration, seconds: float) -> None:
        """It took so long."""
        self._seconds[what] += seconds

    def count_end(self, reason: FinishReason) -> None:
        """A request or hint ended well."""
        self._counts[f"finished_{reason.value}"] += 1

    def count_failure(self, kind: FailureKind) -> None:
        """A request ended with an error, or was refused."""
        self._counts[f"failed_{kind.name.lower()}"] += 1

    def count_sources(self, tokens_by_source: Mapping[str, int]) -> None:
        """A client was told where the tokens of its prompt came from."""
        for source, num_tokens in tokens_by_source.items():
            self._counts[f"prompt_tokens_{source}"] += num_tokens

    def count_first_token(self, wait_s: float) -> None:
        """A request has its first token, so long after it arrived."""
        self.count(Count.FIRST_TOKENS)
        self.add_s(Duration.FIRST_TOKEN, wait_s)

    def count_completion(self, *, num_later: int, later_s: float, total_s: float) -> None:
        """A request is complete: `num_later` tokens followed the first one, in `later_s`."""
        self.count(Count.LATER_TOKENS, num_later)
        self.add_s(Duration.LATER_TOKENS, later_s)
        self.count(Count.COMPLETE_REQUESTS)
        self.add_s(Duration.COMPLETE_REQUESTS, total_s)

    def count_prediction(self, what: Prediction, predicted_s: float, measured_s: float) -> None:
        """A predicted duration was measured."""
        self._counts[f"predicted_{what}s"] += 1
        self._seconds[f"{what}_predicted_s"] += predicted_s
        self._seconds[f"{what}_measured_s"] += measured_s
        self._seconds[f"{what}_error_s"] += abs(predicted_s - measured_s)

    def count_eviction(self, num_pages: int, *, num_dropped: int) -> None:
        """Pages were evicted; `num_dropped` of them have no copy in L2."""
        self.count(Count.EVICTED_PAGES, num_pages)
        if num_dropped:
            self.count(Count.DROPPED_PAGES, num_dropped)

    def figures(self) -> dict[str, float]:
        """Everything that was counted at least once, by name."""
        named = {str(name): number for name, number in self._counts.items()}
        return {**named, **{str(name): seconds for name, seconds in self._seconds.items()}}
