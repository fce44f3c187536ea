"""What tiers find of a trace when clients tell them what comes next, rightly or not."""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raydix.runtime.foresight.plan.quick import Tier
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest
from raydix.runtime.messages.retention import Retention, RetentionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Which hints clients give, and how many of them are wrong."""

    with_ends: bool = True
    with_pauses: bool = True
    wrong_fraction: float = 0.0
    """The hints that say that a session ends or not, whichever is false."""
    late_fraction: float = 0.0
    """Pauses that last twice as long as was said."""


class _Adviser:
    """Draws the hint that a client gives with each request."""

    def __init__(self, requests: Sequence[TraceRequest], hints: Hints) -> None:
        self._random = random.Random(11)
        self._hints = hints
        self._pauses = [r.next_s - r.arrival_s for r in requests if r.next_s is not None]

    def hint(self, request: TraceRequest, now_s: float) -> Retention | None:
        is_end = request.next_s is None
        pause_s = 0.0 if request.next_s is None else max(0.0, request.next_s - now_s)
        if self._random.random() < self._hints.wrong_fraction:
            is_end, pause_s = not is_end, self._random.choice(self._pauses)
        elif self._random.random() < self._hints.late_fraction:
            pause_s /= 2
        if is_end:
            return Retention(kind=RetentionKind.END) if self._hints.with_ends else None
        if not self._hints.with_pauses:
            return None
        return Retention(kind=RetentionKind.RESUME, seconds=pause_s)


def hit_fraction(
    requests: Sequence[TraceRequest], tier: Tier, hints: Hints | None, *, with_durations: bool
) -> float:
    """The share of prompt tokens that the tier holds when they are asked for."""
    adviser = None if hints is None else _Adviser(requests, hints)
    num_hits = 0
    for now_s, request, is_end in _events(requests, with_durations):
        if is_end:
            hint = None if adviser is None else adviser.hint(request, now_s)
            tier.end(request, hint, now_s)
        else:
            num_hits += tier.begin(request, now_s)
    return num_hits * BLOCK_TOKENS / sum(request.num_tokens for request in requests)


def _events(
    requests: Sequence[TraceRequest], with_durations: bool
) -> Iterator[tuple[float, TraceRequest, bool]]:
    """Arrivals and ends, in time."""
    ends: list[tuple[float, int]] = []
    for index, request in enumerate(requests):
        while ends and ends[0][0] <= request.arrival_s:
            end_s, ended = heapq.heappop(ends)
            yield end_s, requests[ended], True
        yield request.arrival_s, request, False
        if with_durations:
            heapq.heappush(ends, (request.end_s, index))
        else:
            yield request.arrival_s, request, True
