"""What engines of several ranks serve, whether these share a model's experts or each have all."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine.engines import Answer, Prompts, ask, ask_batch, settle, steady_tpot_ms
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.shared_experts.expert_loads import BatchLoad
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import SamplingParams

WEIGHT_STD = 0.02
"""The spread of random weights, a router's among them."""
SAMPLED = SamplingParams(temperature=1.0)
"""Greedy streams of random weights soon repeat a token, and then read few experts."""
_DRAWS = 4096
_POLL_S = 0.1


def popularity_bias(model: ModelConfig, balancedness: float, num_ranks: int) -> dict[str, Tensor]:
    """Biases of the routers: earlier experts are more popular, the same in every layer.

    If the ranks have them in their order, the mean of the ranks' loads is `balancedness` times the
    largest, as far as random hidden states tell.
    """
    num_experts, num_chosen = int(model["num_local_experts"]), int(model["num_experts_per_tok"])
    spread = WEIGHT_STD * float(model["hidden_size"]) ** 0.5
    logits_TE = np.random.default_rng(0).normal(0, spread, (_DRAWS, num_experts))
    slope_E = np.linspace(1, -1, num_experts)

    def first_share(scale: float) -> float:
        chosen_TK = np.argpartition(-(logits_TE + scale * slope_E), num_chosen - 1)[:, :num_chosen]
        return float((chosen_TK < num_experts // num_ranks).mean())

    low, high = 0.0, 10 * spread
    for _ in range(30):
        middle = (low + high) / 2
        is_enough = first_share(middle) * num_ranks * balancedness >= 1
        low, high = (low, middle) if is_enough else (middle, high)
    bias_E = torch.from_numpy(high * slope_E).float()
    return {
        f"layers.{layer}.mlp.router.bias": bias_E
        for layer in range(int(model["num_hidden_layers"]))
    }


class Asker:
    """Asks an engine, each time with other prompts."""

    def __init__(self, llm: AsyncLLM, load: BatchLoad, vocab_size: int, num_ranks: int) -> None:
        self._llm = llm
        self._num_ranks = num_ranks
        self._load = load
        self._prompts = Prompts(vocab_size)

    async def prefill_tokens_per_s(self, repeats: int) -> float:
        """The speed of long prompts that come together, until the last one has its token."""
        load, rates = self._load, []
        num_prompts = self._num_ranks * load.long_prompts
        for _ in range(1 + repeats):
            drawn = [self._prompts.draw(load.long_tokens) for _ in range(num_prompts)]
            answers = await asyncio.gather(
                *(ask(self._llm.generate, prompt, 1) for prompt in drawn)
            )
            began_s = min(answer.sent_s for answer in answers)
            ended_s = max(answer.first_s for answer in answers)
            rates.append(num_prompts * load.long_tokens / (ended_s - began_s))
            await settle(self._llm.stats)
        # The first round warms up.
        return median(rates[1:])

    async def tpot_ms(self, repeats: int) -> float:
        """The steady time per token while all ranks generate for whole batches."""
        rounds = []
        for _ in range(1 + repeats):
            rounds.append(await self.batch(self._load.output_tokens))
            await settle(self._llm.stats)
        return median(steady_tpot_ms(answers) for answers in rounds[1:])

    async def step_over_device(self) -> float:
        """The time of a decode step of all ranks' batches, over that on the slowest device.

        Both are taken from one reading of the engine's figures to another, while all streams run.
        """
        async with Watch(self._llm) as watch:
            answers = await self.batch(self._load.moving_output_tokens)
        await settle(self._llm.stats)
        return watch.step_over_device(*steady_span(answers))

    async def batch(self, output_tokens: int) -> list[Answer]:
        """One round of all ranks' batches; the first stream is watched token by token."""
        load = self._load
        num_streams = self._num_ranks * load.batch
        # Of all lengths, or all streams would fill their pages in the same few steps.
        more = [stream % load.page_size for stream in range(num_streams)]
        drawn = [self._prompts.draw(load.prompt_tokens + num) for num in more]
        return await ask_batch(self._llm.generate, drawn, output_tokens, SAMPLED)


def steady_span(answers: Sequence[Answer]) -> tuple[float, float]:
    """When all streams have begun, and when the first one ends."""
    return max(each.first_s for each in answers), min(each.ended_s for each in answers)


def steps_of(answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """When each step of the first stream began and ended, while all streams generate."""
    start_s, stop_s = steady_span(answers)
    arrivals_s = [time_s for time_s in answers[0].arrivals_s if start_s <= time_s <= stop_s]
    return list(pairwise(arrivals_s))


class Watch:
    """Polls an engine's stats for as long as its `async with` block runs."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._task: asyncio.Task[None] | None = None
        self._seen: list[tuple[float, Mapping[str, Any]]] = []
        """When, and what the engine counts."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "it has been entered"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def moving(self) -> list[tuple[float, float]]:
        """Spans of time within which experts moved."""
        return [
            (start_s, end_s)
            for (start_s, before), (end_s, after) in pairwise(
                (time_s, stats["scheduler"]) for time_s, stats in self._seen
            )
            if after["expert_moves"] > before["expert_moves"]
            or before["expert_moves_left"]
            or after["expert_moves_left"]
        ]

    def step_over_device(self, start_s: float, stop_s: float) -> float:
        """The time between the first and last reading in a span, over that in steps.

        Raises RuntimeError if there were fewer than two readings.
        """
        within = [each for each in self._seen if start_s <= each[0] <= stop_s]
        if len(within) < 2:
            raise RuntimeError("the engine's figures were read less than twice; generate more")
        (began_s, before), (ended_s, after) = within[0], within[-1]
        in_steps_s = [
            after[name]["compute_s"] - before[name]["compute_s"]
            for name in after
            if name.startswith("gpu")
        ]
        return (ended_s - began_s) / max(in_steps_s)

    async def _poll(self) -> None:
        while True:
            stats = await self._llm.stats()
            self._seen.append((time.monotonic(), stats))
            await asyncio.sleep(_POLL_S)
