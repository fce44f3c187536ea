"""Requests that are sent to an engine in order to see what they take."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.foresight.simulator.fitting import (
    DecodeTime,
    FirstTokenTime,
    LoadTime,
    PromptTime,
)

_SETTLE_S = 0.05


class MeasuredEngine(Protocol):
    """What is asked of an engine."""

    def generate(
        self, prompt: Any, sampling_params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate for one prompt."""

    async def stats(self) -> Mapping[str, Any]:
        """Figures of every actor."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What some requests at once have taken."""

    num_tokens: int
    """The tokens of all prompts."""
    num_computed: int
    """The tokens among them that were in no tier."""
    wall_s: float
    """From the first request to the last answer."""
    engine_s: float
    """From the arrivals at the Scheduler to the first tokens, all together."""
    device_s: float
    num_plans: int
    loaded_bytes: int
    """What was loaded to the first rank."""
    loading_s: float

    @property
    def prompt(self) -> PromptTime:
        """The time of its step, if it was one request for one token."""
        return PromptTime(self.num_computed, self.device_s, self.num_tokens - self.num_computed)

    @property
    def first_token(self) -> FirstTokenTime:
        """What the token took besides the step, in the same case."""
        device_s = self.device_s
        client_s, engine_s = (max(0.0, s - device_s) for s in (self.wall_s, self.engine_s))
        return FirstTokenTime(self.num_tokens, client_s, engine_s)

    @property
    def load(self) -> LoadTime:
        """What it loaded."""
        return LoadTime(self.loaded_bytes, self.loading_s)


def decodes_of(
    short: Ran, long: Ran, num_rows: int, num_prompt_tokens: int, num_later: int
) -> DecodeTime:
    """What the later tokens of outputs took, of which `short` has one and `long` so many more."""
    return DecodeTime(
        num_rows=num_rows * num_later,
        seconds=max(1e-6, long.device_s - short.device_s),
        num_steps=max(num_later, long.num_plans - short.num_plans),
        context=num_prompt_tokens + num_later / 2,
    )


class Probe:
    """Sends requests, and reads what they took."""

    def __init__(self, engine: MeasuredEngine, vocab_size: int) -> None:
        self._engine, self._vocab_size = engine, vocab_size
        # Other ones each time: the engine, or its L3, may have those of an earlier profile.
        self._draw = random.Random()
        self.num_tokens = 0
        """The prompts' tokens that were sent so far."""

    def new_prompt(self, num_tokens: int) -> list[int]:
        """Tokens that nobody has asked for."""
        return [self._draw.randrange(self._vocab_size) for _ in range(num_tokens)]

    async def run(self, prompts: Sequence[list[int]], max_tokens: int = 1) -> Ran:
        """Ask for so many tokens behind each prompt, of all at once."""

        async def ask() -> int:
            return sum(await asyncio.gather(*(self._ask(each, max_tokens) for each in prompts)))

        return await self._run(ask, sum(map(len, prompts)))

    async def run_beside(
        self, other: list[int], num_other: int, prompts: Sequence[list[int]]
    ) -> Ran:
        """Ask for a token behind each prompt, of one after the other, while one more is answered.

        The prompts' tokens alone are counted.
        """

        async def ask() -> int:
            began = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(other, num_other, began))
                await began.wait()
                return sum([await self._ask(each, 1) for each in prompts])

        return await self._run(ask, sum(map(len, prompts)))

    async def _run(self, ask: Callable[[], Awaitable[int]], num_tokens: int) -> Ran:
        """`ask` returns how many of the tokens were computed."""
        before = await self._engine.stats()
        began_s = time.monotonic()
        num_computed = await ask()
        wall_s = time.monotonic() - began_s
        # A step that was sent ahead may end after its request.
        await asyncio.sleep(_SETTLE_S)
        after = await self._engine.stats()
        took = _difference(before, after)
        self.num_tokens += num_tokens
        return Ran(
            num_tokens=num_tokens,
            num_computed=num_computed,
            wall_s=wall_s,
            engine_s=took["engine_s"],
            device_s=took["compute_s"],
            num_plans=int(took["num_plans"]),
            loaded_bytes=int(took["loaded_bytes"]),
            loading_s=took["loading_s"],
        )

    async def _ask(
        self, prompt: list[int], max_tokens: int, began: asyncio.Event | None = None
    ) -> int:
        """Returns how many of the prompt's tokens were computed; sets `began` at a first token."""
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        sources: Mapping[str, int] = {}
        async for output in self._engine.generate(prompt, params):
            sources = output.metrics.cached_tokens_by_source
            if began is not None:
                began.set()
        return sum(num for source, num in sources.items() if source.startswith("computed"))


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    first, last = _figures(before), _figures(after)
    return {name: last[name] - first[name] for name in last}


def _figures(stats: Mapping[str, Any]) -> dict[str, float]:
    scheduler, rank = stats["scheduler"], stats.get("gpu0", {})
    return {
        # Not there before the first step.
        "compute_s": scheduler.get("compute_s", 0.0),
        "engine_s": scheduler["first_token_times"]["sum"],
        "num_plans": scheduler["num_plans"],
        "loaded_bytes": rank.get("loaded_bytes", 0),
        "loading_s": rank.get("loading_s", 0.0),
    }
