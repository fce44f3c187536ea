"""Sends the requests of a workload when its load says, and notes what comes back when."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from raydix.errors import RaydixError
from raydix.runtime.cli.load.arrivals import ClosedLoop, Load, OpenLoop
from raydix.runtime.cli.load.report import Outcome
from raydix.runtime.cli.load.requests import LoadRequest


@dataclass(frozen=True, slots=True)
class OutputCame:
    """Some of the output is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request took, told once it has ended."""

    num_prompt_tokens: int
    num_output_tokens: int
    tokens_by_source: Mapping[str, int] = field(default_factory=dict)


class Sender(Protocol):
    """Sends requests to whatever answers them."""

    def stream(self, request: LoadRequest) -> AsyncGenerator[OutputCame | Usage, None]:
        """Ask, and say when output comes. Raises RaydixError if the request fails."""


class Clock(Protocol):
    """Time, which tests make up."""

    def now_s(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait so many seconds."""


async def run_load(
    requests: Sequence[LoadRequest],
    load: Load,
    sender: Sender,
    clock: Clock,
    on_end: Callable[[], None],
) -> list[Outcome]:
    """Send all requests; what became of each, in their order. `on_end`: called as each ends."""
    speed = load.speed if isinstance(load, OpenLoop) else 1.0
    run = _Run(requests, sender, clock, on_end, speed)
    match load:
        case ClosedLoop():
            # All workers share one iterator, so that each request is taken once, in order.
            remaining = iter(range(len(requests)))
            jobs = [run.work(remaining) for _ in range(load.max_concurrent)]
        case OpenLoop():
            jobs = [run.send_at(i, due_s) for i, due_s in enumerate(load.arrivals_s)]

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)
    return [run.outcomes[i] for i in range(len(requests))]


class _Run:
    """Owns: which requests of one load have ended, and how."""

    def __init__(
        self,
        requests: Sequence[LoadRequest],
        sender: Sender,
        clock: Clock,
        on_end: Callable[[], None],
        speed: float,
    ) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._requests = requests
        self._sender = sender
        self._clock = clock
        self._on_end = on_end
        self._speed = speed
        self._has_ended = [asyncio.Event() for _ in requests]
        self._begun_s = clock.now_s()

    async def work(self, remaining: Iterator[int]) -> None:
        """Send one request after another."""
        for i in remaining:
            await self._send(i, None)

    async def send_at(self, index: int, due_s: float) -> None:
        """Send one request at its time."""
        await self._clock.sleep(due_s - self._elapsed_s())
        await self._send(index, due_s)

    async def _send(self, index: int, due_s: float | None) -> None:
        request = self._requests[index]
        if request.after is not None:
            await self._has_ended[request.after].wait()
            pause_s = request.pause_s / self._speed
            await self._clock.sleep(pause_s)
            # A turn that waits for the one before it is not late.
            next_s = self.outcomes[request.after].ended_s + pause_s
            due_s = None if due_s is None else max(due_s, next_s)

        self.outcomes[index] = await self._outcome_of(request, due_s)
        self._has_ended[index].set()
        self._on_end()

    async def _outcome_of(self, request: LoadRequest, due_s: float | None) -> Outcome:
        usage, error = Usage(num_prompt_tokens=0, num_output_tokens=0), None
        first_s = last_s = None
        sent_s = self._elapsed_s()
        try:
            async with aclosing(self._sender.stream(request)) as news:
                async for each in news:
                    match each:
                        case OutputCame():
                            last_s = self._elapsed_s()
                            first_s = last_s if first_s is None else first_s
                        case Usage():
                            usage = each
        except RaydixError as failure:
            error = f"{type(failure).__name__}: {failure}"

        return Outcome(
            due_s=due_s,
            sent_s=sent_s,
            first_s=first_s,
            last_s=last_s,
            ended_s=self._elapsed_s(),
            num_prompt_tokens=usage.num_prompt_tokens,
            num_output_tokens=usage.num_output_tokens,
            tokens_by_source=dict(usage.tokens_by_source),
            error=error,
            is_measured=request.is_measured,
        )

    def _elapsed_s(self) -> float:
        return self._clock.now_s() - self._begun_s
