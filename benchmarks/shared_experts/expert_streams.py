"""Streams through all tiers of an engine, and through the death of one of them."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.engine.engines import Prompts, settle
from benchmarks.records.record import Figure
from benchmarks.shared_experts.expert_loads import StreamLoad
from raydix.errors import RaydixError
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.outputs import CompletionOutput

MAX_BACK_S = 60.0
_POLL_S = 0.05
_VICTIM = "gpu1"
_MIN_TOKENS_BEFORE = 8
"""Every stream has so many when the rank is killed."""


@dataclass(slots=True)
class Stream:
    """What came of one request."""

    tokens: list[int] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    num_decided: int = 0
    """How many tokens come before the first near tie, where log-probabilities were asked for."""
    sources: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


async def stream(
    llm: AsyncLLM, prompt: list[int], num_tokens: int, into: Stream, min_gap: float | None = None
) -> Stream:
    """Generate greedily; `min_gap`: between the two likeliest tokens, less than that is a tie."""
    params: dict[str, Any] = {
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "output_kind": "delta",
        "detokenize": False,
    }
    if min_gap is not None:
        params["logprobs"] = 2
    has_tied = min_gap is None
    try:
        async for output in llm.generate(prompt, params):
            now_s, new = time.monotonic(), output.outputs[0]
            for gap in _gaps(new):
                has_tied = has_tied or gap < (min_gap or 0.0)
                into.num_decided += not has_tied
            into.tokens += new.token_ids
            into.arrivals_s += [now_s] * len(new.token_ids)
            into.sources = output.metrics.cached_tokens_by_source
    except RaydixError as error:
        into.failure = f"{type(error).__name__}: {error}"
    return into


def _gaps(output: CompletionOutput) -> list[float]:
    """The gap between the two likeliest tokens, at each new one."""
    gaps = []
    for candidates in output.logprobs or []:
        best, second, *_ = sorted((each.logprob for each in candidates.values()), reverse=True)
        gaps.append(best - second)
    return gaps


async def through_all_tiers(llm: AsyncLLM, load: StreamLoad, vocab_size: int) -> list[Figure]:
    """Every context twice, with other new tokens: computed first, then from wherever it is."""
    prompts = Prompts(vocab_size)
    contexts = [prompts.draw(load.context_tokens) for _ in range(load.num_contexts)]
    admitted = asyncio.Semaphore(load.num_streams)

    async def one(context: list[int]) -> Stream:
        async with admitted:
            prompt = context + prompts.draw(load.new_tokens)
            return await stream(llm, prompt, load.answer_tokens, Stream())

    rounds, times_s = [], []
    # Backwards the second time: the last ones are still in L1, those before them in L2.
    for ordered in (contexts, contexts[::-1]):
        began_s = time.monotonic()
        rounds.append(await asyncio.gather(*(one(context) for context in ordered)))
        times_s.append(time.monotonic() - began_s)
        await settle(llm.stats)

    first, second = rounds
    sources = sum((Counter(each.sources) for each in second), Counter())
    return [
        *_failures("all tiers", (*first, *second), load.answer_tokens),
        *(
            Figure(name=f"tokens from {tier}", value=sources[tier], unit="tokens", min_value=1)
            for tier in ("l1", "l2", "l3")
        ),
        Figure(name="tokens computed again", value=_computed(sources), unit="tokens"),
        Figure(name="first round", value=times_s[0], unit="s"),
        Figure(name="second round", value=times_s[1], unit="s"),
    ]


def _computed(sources: Counter[str]) -> int:
    return sum(count for name, count in sources.items() if name.startswith("computed"))


@dataclass(slots=True)
class Outage:
    """When what happened, by `time.monotonic()`; None: it did not."""

    killed_s: float | None = None
    detected_s: float | None = None
    """It serves no more."""
    serves_s: float | None = None
    """Its successor does, with all weights."""
    load_s: float = 0.0
    """The time in which the successor met the other ranks and filled its seats from the host's
    memory.
    """


async def kill_a_rank(handle: EngineHandle, outage: Outage) -> None:
    """Kill it, and return when its successor serves."""
    before = (await handle.call("health"))[_VICTIM]
    outage.killed_s = time.monotonic()
    os.kill(before["pid"], signal.SIGKILL)

    while outage.serves_s is None:
        victim = (await handle.call("health"))[_VICTIM]
        now_s = time.monotonic()
        has_ended = victim["pid"] != before["pid"]
        if outage.detected_s is None and has_ended:
            outage.detected_s = now_s
        if has_ended and victim["serves"]:
            outage.serves_s = now_s
        await asyncio.sleep(_POLL_S)
    outage.load_s = (await handle.call("stats"))[_VICTIM]["load_s"]


async def all_streams(
    llm: AsyncLLM,
    prompts: Sequence[list[int]],
    num_tokens: int,
    *,
    min_gap: float | None = None,
    once_all_run: Callable[[], Awaitable[None]] | None = None,
) -> list[Stream]:
    """All prompts at once; `once_all_run` is called when every stream has some tokens."""
    streams = [Stream() for _ in prompts]
    tasks = [
        asyncio.create_task(stream(llm, prompt, num_tokens, each, min_gap))
        for prompt, each in zip(prompts, streams, strict=True)
    ]

    if once_all_run is not None:
        while min(len(each.tokens) for each in streams) < min(_MIN_TOKENS_BEFORE, num_tokens - 1):
            await asyncio.sleep(_POLL_S)
        await once_all_run()
    await asyncio.gather(*tasks)
    return streams


async def through_a_death(
    llm: AsyncLLM, handle: EngineHandle, load: StreamLoad, vocab_size: int, min_gap: float
) -> list[Figure]:
    """The same greedy streams undisturbed, once more, and while a rank is killed."""
    drawn = Prompts(vocab_size)
    prompts = [drawn.draw(load.context_tokens) for _ in range(load.num_streams)]
    num_tokens = load.long_answer_tokens
    expected = await all_streams(llm, prompts, num_tokens, min_gap=min_gap)
    await settle(llm.stats)
    control = await all_streams(llm, prompts, num_tokens)
    await settle(llm.stats)

    outage = Outage()
    disturbed = await all_streams(
        llm, prompts, num_tokens, once_all_run=lambda: kill_a_rank(handle, outage)
    )
    return [
        *_failures("a rank killed", disturbed, num_tokens),
        *_sameness("undisturbed once more", expected, control, has_bar=False),
        *_sameness("a rank killed", expected, disturbed, has_bar=True),
        *_durations(outage, disturbed),
    ]


def _failures(name: str, streams: Sequence[Stream], num_tokens: int) -> list[Figure]:
    failures = [each.failure for each in streams if each.failure is not None]
    for failure in failures[:3]:
        print(failure, file=sys.stderr, flush=True)
    num_wrong = sum(len(each.tokens) != num_tokens for each in streams)
    return [
        Figure(name=f"{name}: streams", value=len(streams), unit="1"),
        Figure(name=f"{name}: streams that failed", value=len(failures), unit="1", max_value=0),
        Figure(
            name=f"{name}: streams with too few or too many tokens",
            value=num_wrong,
            unit="1",
            max_value=0,
        ),
    ]


def _sameness(
    name: str, expected: Sequence[Stream], seen: Sequence[Stream], *, has_bar: bool
) -> list[Figure]:
    """Up to a near tie, which rounding may decide either way, tokens must be the same."""
    pairs = list(zip(expected, seen, strict=True))
    num_same = sum(ours.tokens == theirs.tokens for theirs, ours in pairs)
    num_decided = sum(theirs.num_decided for theirs, _ in pairs)
    num_wrong = sum(
        ours.tokens[: theirs.num_decided] != theirs.tokens[: theirs.num_decided]
        for theirs, ours in pairs
    )
    return [
        Figure(name=f"{name}: streams with the same tokens", value=num_same, unit="1"),
        Figure(
            name=f"{name}: streams that differ before a near tie",
            value=num_wrong,
            unit="1",
            max_value=0 if has_bar else None,
        ),
        Figure(name=f"{name}: tokens before near ties", value=num_decided, unit="tokens"),
    ]


def _durations(outage: Outage, streams: Sequence[Stream]) -> list[Figure]:
    """Since the kill. Service is back when the longest time without any token ends."""
    arrivals_s = sorted(time_s for each in streams for time_s in each.arrivals_s)
    gap_s, back_s = max((end - start, end) for start, end in pairwise(arrivals_s))
    return [
        _since("detect", outage.killed_s, outage.detected_s),
        _since("restart, refill included", outage.detected_s, outage.serves_s),
        Figure(name="refill", value=outage.load_s, unit="s"),
        _since("first token", outage.killed_s, back_s, MAX_BACK_S),
        Figure(name="longest time without any token", value=gap_s, unit="s"),
    ]


def _since(
    name: str, start_s: float | None, end_s: float | None, max_value: float | None = None
) -> Figure:
    """What did not happen is NaN, which meets no bar."""
    has_both = start_s is not None and end_s is not None
    value = end_s - start_s if has_both else float("nan")  # type: ignore[operator]
    return Figure(name=name, value=value, unit="s", max_value=max_value)
