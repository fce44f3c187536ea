"""Turn what clients saw of each request into the figures of a benchmark."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from raydix.errors import BadRequest

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request as its client saw it. Times count from the start of the load."""

    sent_s: float
    ended_s: float
    first_s: float | None = None
    """When its first token came; None: none did."""
    last_s: float | None = None
    """When its last token came."""
    due_s: float | None = None
    """When the load had it sent; None: as soon as another one ended."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    tokens_by_source: dict[str, int] = field(default_factory=dict)
    """The number of the prompt's tokens by where they came from; empty if the server does not tell.
    """
    error: str | None = None
    is_measured: bool = True

    @property
    def ttft_s(self) -> float:
        """Time to the first token; to the end, if there was none."""
        return (self.ended_s if self.first_s is None else self.first_s) - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None if there was one alone."""
        if self.first_s is None or self.last_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1)

    @property
    def latency_s(self) -> float:
        """The time from the sending to the end."""
        return self.ended_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request has to keep to count as good; None: any time will do."""

    ttft: float | None = None
    tpot: float | None = None
    latency: float | None = None

    def is_met(self, outcome: Outcome) -> bool:
        """Whether a request succeeded and was fast enough in all respects."""
        times = (
            (self.ttft, outcome.ttft_s),
            (self.tpot, outcome.tpot_s or 0.0),
            (self.latency, outcome.latency_s),
        )
        is_fast = all(bound is None or time_s <= bound for bound, time_s in times)
        return outcome.error is None and is_fast


def parse_slo(texts: Sequence[str]) -> Slo | None:
    """From `ttft=0.2`, in seconds; several may stand in one text. None without any.

    Raises BadRequest for anything else.
    """
    bounds: dict[str, float] = {}
    for part in re.split(r"[,\s]+", " ".join(texts).strip()):
        name, _, value = part.partition("=")
        if part and name in {each.name for each in fields(Slo)} and _is_positive(value):
            bounds[name] = float(value)
        elif part:
            raise BadRequest(
                f"--slo {part}: expected ttft, tpot or latency and seconds, such as ttft=0.2."
            )
    return Slo(**bounds) if bounds else None


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolated between the two nearest ranks. There must be a value."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the requests of one load came to."""

    num_requests: int
    num_measured: int
    """The number of requests that succeeded and whose times count."""
    errors: dict[str, int]
    """How many requests failed, by what they were told."""
    duration_s: float
    ms: dict[str, dict[str, float]]
    """Times in ms: of TTFT, TPOT and latency the percentiles, by `p50` and so on."""
    lag_ms: float | None
    """How late the benchmark itself sent, p99; None in a closed loop."""
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float | None
    """Requests per second within the SLO; None without one."""
    good_fraction: float | None
    tokens_by_source: dict[str, int]


def summarise(outcomes: Sequence[Outcome], slo: Slo | None) -> Summary:
    """The figures of one load: throughput of all that succeeded, times of those measured."""
    succeeded = [each for each in outcomes if each.error is None]
    counted = [each for each in succeeded if each.is_measured]
    begun_s = min((each.sent_s for each in outcomes), default=0.0)
    duration_s = max((each.ended_s for each in outcomes), default=0.0) - begun_s

    times = {
        "TTFT": [each.ttft_s for each in counted],
        "TPOT": [tpot_s for each in counted if (tpot_s := each.tpot_s) is not None],
        "latency": [each.latency_s for each in counted],
    }
    lags = [each.sent_s - each.due_s for each in outcomes if each.due_s is not None]
    sources: Counter[str] = Counter()
    for each in counted:
        sources.update(each.tokens_by_source)

    judged = [each for each in outcomes if each.is_measured]
    num_good = None if slo is None else sum(map(slo.is_met, judged))
    return Summary(
        num_requests=len(outcomes),
        num_measured=len(counted),
        errors=dict(Counter(each.error for each in outcomes if each.error is not None)),
        duration_s=duration_s,
        ms={
            name: {f"p{percent}": 1e3 * percentile(seconds, percent) for percent in PERCENTILES}
            for name, seconds in times.items()
            if seconds
        },
        lag_ms=1e3 * percentile(lags, 99) if lags else None,
        requests_per_s=_rate(len(succeeded), duration_s),
        prompt_tokens_per_s=_rate(sum(each.num_prompt_tokens for each in succeeded), duration_s),
        output_tokens_per_s=_rate(sum(each.num_output_tokens for each in succeeded), duration_s),
        goodput_per_s=None if num_good is None else _rate(num_good, duration_s),
        good_fraction=num_good / len(judged) if num_good is not None and judged else None,
        tokens_by_source=dict(sources),
    )


def _rate(number: float, duration_s: float) -> float:
    return number / duration_s if duration_s > 0 else 0.0


def figures_of(summary: Summary, prefix: str) -> list[dict[str, Any]]:
    """The figures of one load as a record has them; `prefix`: of their names."""
    rows: list[tuple[str, float | None, str]] = [
        (f"{name} {rank}", value, "ms")
        for name, ranks in summary.ms.items()
        for rank, value in ranks.items()
    ]
    rows += [
        ("sending lag p99", summary.lag_ms, "ms"),
        ("throughput", summary.requests_per_s, "requests/s"),
        ("goodput", summary.goodput_per_s, "requests/s"),
        ("prompt throughput", summary.prompt_tokens_per_s, "tokens/s"),
        ("output throughput", summary.output_tokens_per_s, "tokens/s"),
        ("within the SLO", summary.good_fraction, "fraction"),
        *((f"from {tier}", share, "fraction") for tier, share in tier_shares(summary).items()),
        ("measured", summary.num_measured, "requests"),
        ("failed", sum(summary.errors.values()), "requests"),
    ]
    return [
        {"name": f"{prefix}{name}", "value": float(f"{value:.4g}"), "unit": unit}
        for name, value, unit in rows
        if value is not None
    ]


def tier_shares(summary: Summary) -> dict[str, float]:
    """The part of the prompt tokens from each tier, and of those computed; empty if not told."""
    tokens: Counter[str] = Counter()
    for source, num_tokens in summary.tokens_by_source.items():
        tokens[source.partition(":")[0]] += num_tokens
    total = tokens.total()
    # What was computed comes last; `l1` before `l2`, and so on.
    tiers = sorted(tokens, key=lambda tier: (tier == "computed", tier))
    return {tier: tokens[tier] / total for tier in tiers} if total else {}
