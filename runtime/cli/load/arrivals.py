"""When requests are sent: at times fixed before, or as earlier ones end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raydix.errors import BadRequest
from raydix.runtime.cli.load.requests import LoadRequest

DEFAULT_CONCURRENCY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """A fixed number of requests in flight: when one ends the next is sent."""

    max_concurrent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests are sent at their times, however many are still in flight."""

    arrivals_s: tuple[float, ...]
    """The times from the start, one for each request of the workload."""
    speed: float = 1.0
    """How many times as fast as the workload has it, pauses within sessions included."""


Load = ClosedLoop | OpenLoop


def poisson_arrivals(num_requests: int, rate_per_s: float, seed: int) -> tuple[float, ...]:
    """Times of a Poisson process: the gaps are exponential and independent. The first is 0."""
    rng = random.Random(seed)
    times, now_s = [], 0.0
    for _ in range(num_requests):
        times.append(now_s)
        now_s += rng.expovariate(rate_per_s)
    return tuple(times)


def choose_load(
    requests: Sequence[LoadRequest],
    *,
    rate_per_s: float | None,
    max_concurrent: int | None,
    speed: float | None,
    seed: int,
) -> Load:
    """The load that was asked for; if none was, the workload's own, else a closed loop.

    speed: of the workload's own arrivals; 2: twice as many a second. Raises BadRequest for a
    contradiction.
    """
    asked = [each for each in (rate_per_s, max_concurrent, speed) if each is not None]
    if len(asked) > 1:
        raise BadRequest(
            "--rate, --concurrency and --speed each say when requests are sent. Give one of them."
        )
    if rate_per_s is not None:
        return OpenLoop(arrivals_s=poisson_arrivals(len(requests), rate_per_s, seed))
    if max_concurrent is not None:
        return ClosedLoop(max_concurrent=max_concurrent)

    times_s = [each.arrival_s for each in requests if each.arrival_s is not None]
    if times_s and len(times_s) == len(requests):
        first_s, factor = min(times_s), speed or 1.0
        arrivals_s = tuple((time_s - first_s) / factor for time_s in times_s)
        return OpenLoop(arrivals_s=arrivals_s, speed=factor)
    if speed is not None:
        raise BadRequest("--speed is for traces with a timestamp in every line. Give --rate.")
    return ClosedLoop(max_concurrent=DEFAULT_CONCURRENCY)


def measured_alone(
    requests: Sequence[LoadRequest], load: Load
) -> tuple[tuple[LoadRequest, ...], Load]:
    """The requests that are measured, none of which waits for another, under the same load."""
    places = [i for i, each in enumerate(requests) if each.is_measured]
    alone = tuple(replace(requests[i], after=None) for i in places)
    match load:
        case ClosedLoop():
            return alone, load
        case OpenLoop():
            times_s = [load.arrivals_s[i] for i in places]
            first_s = min(times_s, default=0.0)
            return alone, OpenLoop(arrivals_s=tuple(time_s - first_s for time_s in times_s))
