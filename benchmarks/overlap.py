"""Measure how well a prefix's load from L2 hides behind the computation of new tokens.

    python -m benchmarks.overlap

All three are times to the first token, so that fixed costs count alike: the load alone has one new
token, the computation alone finds the prefix in L1, and both together find it in L2. The numbers of
new tokens are chosen so that the computation alone takes 0.25, 1 and 4 times as long as the load
alone.
"""

import asyncio
from dataclasses import asdict
from itertools import takewhile

import numpy as np

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Options,
    Prompts,
    ask,
    dummy_engine,
    expect_sources,
    median_ttft_ms,
    parse_options,
)
from benchmarks.engine.workloads import FULL_CONTEXTS, TINY_CONTEXTS, Contexts
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from benchmarks.reload import loading
from raydix.runtime.testing.engine import InProcessEngine

MAX_RATIO = 1.15
COMPUTE_RATIOS = (0.25, 1.0, 4.0)
PAGE_SIZE = 64


class Prefix:
    """One prefix that L2 holds, in an engine of its own."""

    def __init__(
        self, engine: InProcessEngine, options: Options, sizes: Contexts, vocab_size: int
    ) -> None:
        self._engine = engine
        self._repeats = options.repeats
        self._num_tokens = sizes.context_tokens
        self._prompts = Prompts(vocab_size)
        self._tokens = self._prompts.draw(sizes.context_tokens)

    async def compute(self) -> None:
        """Bring it into L1 and L2."""
        await ask(self._engine.client.generate, self._tokens + self._prompts.draw(1), 1)
        await self._engine.settle()

    async def from_l1_ms(self, new_tokens: int) -> float:
        """The time with the prefix in L1."""
        return await self._ttft_ms(new_tokens, "l1")

    async def from_l2_ms(self, new_tokens: int) -> float:
        """The time with the prefix in L2 alone."""
        return await self._ttft_ms(new_tokens, "l2")

    async def _ttft_ms(self, new_tokens: int, tier: str) -> float:
        """The first answer warms up."""
        answers = []
        for _ in range(1 + self._repeats):
            if tier == "l2":
                await self._engine.flush_l1()
            answer = await ask(
                self._engine.client.generate, self._tokens + self._prompts.draw(new_tokens), 1
            )
            expect_sources(answer, **{tier: self._num_tokens})
            answers.append(answer)
            await self._engine.settle()
        return median_ttft_ms(answers[1:])


async def choose_new_tokens(prefix: Prefix, sizes: Contexts, targets_ms: list[float]) -> list[int]:
    """Numbers of new tokens whose computation alone takes about these times."""
    # Measured at powers of two, and interpolated between them.
    steps = list(
        takewhile(
            lambda tokens: tokens <= sizes.context_tokens, (16 << power for power in range(16))
        )
    )
    times_ms = [await prefix.from_l1_ms(tokens) for tokens in steps]
    rising_ms = np.maximum.accumulate(times_ms)
    return [max(1, round(float(np.interp(target, rising_ms, steps)))) for target in targets_ms]


async def measure(options: Options, sizes: Contexts, model: ModelConfig) -> list[Figure]:
    """Measure all ratios."""
    async with dummy_engine(options, model, sizes.sections(PAGE_SIZE)) as engine:
        prefix = Prefix(engine, options, sizes, int(model["vocab_size"]))
        await prefix.compute()
        load_ms = await prefix.from_l2_ms(1)
        choices = await choose_new_tokens(
            prefix, sizes, [ratio * load_ms for ratio in COMPUTE_RATIOS]
        )
        before = await engine.stats()
        load_ms = await prefix.from_l2_ms(1)
        _, copy_s = loading(before, await engine.stats())
        figures = [
            Figure(name="load alone", value=load_ms, unit="ms"),
            Figure(
                name="copy of the load alone", value=1e3 * copy_s / (1 + options.repeats), unit="ms"
            ),
        ]
        for ratio, new_tokens in zip(COMPUTE_RATIOS, choices, strict=True):
            # In this order: the loads leave the prefix in L1.
            both_ms = await prefix.from_l2_ms(new_tokens)
            compute_ms = await prefix.from_l1_ms(new_tokens)
            longer_ms = max(load_ms, compute_ms)
            name = f"compute {ratio:g} x load"
            figures += [
                Figure(
                    name=f"{name}: compute alone, {new_tokens} tokens", value=compute_ms, unit="ms"
                ),
                Figure(
                    name=f"{name}: both",
                    value=both_ms,
                    unit="ms",
                    baseline=longer_ms,
                    baseline_name="the longer",
                ),
                Figure(
                    name=f"{name}: both over the longer",
                    value=both_ms / longer_ms,
                    unit="1",
                    max_value=options.bar(MAX_RATIO),
                ),
            ]
        await engine.check()
    return figures


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model = (TINY_CONTEXTS, DENSE_TINY) if options.is_tiny else (FULL_CONTEXTS, DENSE_L16)
    figures = asyncio.run(measure(options, sizes, model))
    return options.report(
        "overlap", {"model": "dense_l16", "page_size": PAGE_SIZE, **asdict(sizes)}, figures
    )


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
