"""Gaps between tokens and times to the first one, with prompts computed apart and with two equals.

    python -m benchmarks.roles                          # two GPUs of one host, an engine on each
    python -m benchmarks.roles --ranks 4                # two GPUs for each engine
    python -m benchmarks.roles --device cpu --tiny      # two engines whose model sleeps, no bars

Long prompts arrive at random, at half of what two equal engines can serve, which is measured first.
The same arrivals are served by two equal engines and by one for prefill and one that decodes, of
one node, by a client that routes by predicted time.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.engine.engines import (
    DENSE_L16,
    Answer,
    Options,
    Prompts,
    ask,
    dummy_config,
    engine_name,
    engine_sections,
    parse_options_of_two,
)
from benchmarks.engine.sleeping_model import build_model
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure, name_with_ranks
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.line_router import LineRouter
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.api.service import AsyncService
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.routing.policies import SoonestNode
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.peers import InProcessPeers
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE

MAX_GAP = 0.5
"""The bar of the 99th percentile of gaps between tokens, as a part of two equal engines'."""
MAX_TTFT = 1.2
"""The bar of the median time to the first token, as a multiple of theirs."""
LOAD = 0.5
EQUALS, APART = ("both", "both"), ("prefill", "decode")
_WARM_REQUESTS = 6

Generate = Callable[..., AsyncGenerator[RequestOutput, None]]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is asked for."""

    prompt_tokens: int = 16_384
    output_tokens: int = 256
    num_requests: int = 120
    page_size: int = 64
    chunk_tokens: int = 8192
    tp: int = 1
    """The ranks of each engine, which share its model."""
    step_s: float = 0.0
    """The time of any step of a model that sleeps, ..."""
    token_s: float = 0.0
    """... and that of each token of a prompt besides."""

    @property
    def sections(self) -> dict[str, Any]:
        """The configuration of each engine, but for its role and its model."""
        length = self.prompt_tokens + self.output_tokens + self.page_size
        pages = 20 * -(-length // self.page_size)
        return engine_sections(
            max_model_len=length,
            page_size=self.page_size,
            l1_pages=pages,
            l2_bytes=None,
            chunk_tokens=self.chunk_tokens,
        )


FULL = Sizes()
TINY = Sizes(
    prompt_tokens=1024,
    output_tokens=160,
    num_requests=16,
    chunk_tokens=512,
    step_s=0.004,
    token_s=0.0002,
)
"""Each output has so many tokens that the gap of its hand-over is not the 99th percentile."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Two engines behind one client, and what was counted of where requests went."""

    generate: Generate
    figures: RoutingFigures


@asynccontextmanager
async def sleeping_engines(sizes: Sizes, roles: Sequence[str]) -> AsyncIterator[Engines]:
    """Two engines of this process that pull pages from each other, and sleep instead of compute."""
    group = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=8)
    layout = KvLayout(page_size=sizes.page_size, dtype="float32", dtype_bytes=4, groups=(group,))

    build: Any = partial(build_model, layout=layout, step_s=sizes.step_s, token_s=sizes.token_s)
    peers = InProcessPeers()
    async with AsyncExitStack() as stack:
        figures = RoutingFigures(())
        client: EngineClient | None = None
        for number, role in enumerate(roles):
            base = {"model": {"path": "none"}, "cache": {"l2": {"ratio": 4.0, "pull": {}}}}
            config = load_config(base | {"role": role}, _without_l2(sizes.sections))
            name = f"{role}{number}"
            engine = await stack.enter_async_context(
                in_process_engine(config, build, name=name, peers=peers)
            )
            if client is None:
                limits = ModelLimits.of(engine.facts.client)
                router = LineRouter(SoonestNode(), figures)
                client = EngineClient(limits, None, lambda name: None, router)
                stack.push_async_callback(client.close)
            hello = Hello(role=Role.CLIENT, name="router", incarnation=0, pid=0)
            record = engine.facts.record
            client.use(name, await connect(record.client_address, hello, record.secret))
        assert client is not None, "there is a role"
        yield Engines(client.generate, figures)


@asynccontextmanager
async def gpu_engines(
    options: Options, sizes: Sizes, model: ModelConfig, roles: Sequence[str]
) -> AsyncIterator[Engines]:
    """Two engines of actors, on GPUs of their own, that share the L2 of their node."""
    async with AsyncExitStack() as stack:
        names = []
        for number, role in enumerate(roles):
            cache = {"l2": {"bytes_per_node": "64GiB", "keep_s": 0.0}}
            sections = _without_l2(sizes.sections)
            sections = {**sections, "cache": sections["cache"] | cache, "role": role}
            sections["parallel"] = {"tp": sizes.tp}
            config = await stack.enter_async_context(dummy_config(options, model, sections))
            names.append(engine_name(f"{role}{number}"))
            await stack.enter_async_context(await AsyncLLM.start(config, name=names[-1]))
        service = await stack.enter_async_context(await AsyncService.connect(names))
        yield Engines(service.generate, service.routing_figures)


def _without_l2(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections, of which L2 is set apart."""
    cache = {name: value for name, value in sections["cache"].items() if name != "l2"}
    return {**sections, "cache": cache}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one pair of engines has done with the same arrivals."""

    answers: Sequence[Answer]
    seconds: float
    num_split: int
    hand_over_s: float
    """What their hand-overs took, from the first token to the second one, all together."""

    @property
    def gap_ms(self) -> float:
        """The 99th percentile of the gaps between tokens of one output."""
        gaps = [np.diff(each.arrivals_s) for each in self.answers]
        return 1e3 * float(np.percentile(np.concatenate(gaps), 99))

    @property
    def ttft_ms(self) -> float:
        """The median time to the first token."""
        return float(np.median([each.ttft_ms for each in self.answers]))

    @property
    def tokens_per_s(self) -> float:
        """Tokens of outputs that came in a second."""
        return sum(each.num_tokens for each in self.answers) / self.seconds


async def serve(
    engines: Engines, prompts: Sequence[list[int]], sizes: Sizes, gap_s: float
) -> Measured:
    """Ask for outputs that arrive `gap_s` apart on average, the same way in each call."""
    draw = random.Random(0)
    num_split, hand_over_s = engines.figures.num_split.total(), _hand_over_s(engines)

    async def one(prompt: list[int], at_s: float) -> Answer:
        await asyncio.sleep(at_s)
        return await ask(engines.generate, prompt, sizes.output_tokens)

    at_s, tasks = 0.0, []
    began_s = time.monotonic()
    for prompt in prompts:
        tasks.append(asyncio.create_task(one(prompt, at_s)))
        at_s += draw.expovariate(1.0) * gap_s
    answers = await asyncio.gather(*tasks)
    split = engines.figures.num_split.total() - num_split
    seconds = time.monotonic() - began_s
    return Measured(answers, seconds, split, _hand_over_s(engines) - hand_over_s)


def _hand_over_s(engines: Engines) -> float:
    return engines.figures.hand_over.distribution().total


async def measure(options: Options, sizes: Sizes, model: ModelConfig) -> list[Figure]:
    """Serve the same arrivals with two equal engines, and with prompts computed apart."""
    is_sleeping = options.device == "cpu"
    prompts = Prompts(VOCAB_SIZE if is_sleeping else int(model["vocab_size"]))
    gap_s = 0.0
    measured: list[Measured] = []
    for roles in (EQUALS, APART):
        started = (
            sleeping_engines(sizes, roles)
            if is_sleeping
            else gpu_engines(options, sizes, model, roles)
        )
        async with started as engines:
            warm = [prompts.draw(sizes.prompt_tokens) for _ in range(_WARM_REQUESTS)]
            await serve(engines, warm, sizes, 0.0)
            if not gap_s:
                # Half of what two equal engines do as quickly as they can.
                num = sizes.num_requests // 2
                full = [prompts.draw(sizes.prompt_tokens) for _ in range(num)]
                gap_s = (await serve(engines, full, sizes, 0.0)).seconds / num / LOAD
            asked = [prompts.draw(sizes.prompt_tokens) for _ in range(sizes.num_requests)]
            measured.append(await serve(engines, asked, sizes, gap_s))
    equals, apart = measured
    return figures_of(options, equals, apart, gap_s)


def figures_of(options: Options, equals: Measured, apart: Measured, gap_s: float) -> list[Figure]:
    """What is told of the two."""

    def ratio(name: str, value: float, other: float, most: float) -> Figure:
        return Figure(name=name, value=value / other, unit="1", max_value=options.bar(most))

    def beside(name: str, value: float, other: float, unit: str) -> Figure:
        of_equals = "two equal engines"
        return Figure(name=name, value=value, unit=unit, baseline=other, baseline_name=of_equals)

    num = len(apart.answers)
    return [
        ratio(
            "gap between tokens, p99, of two equal engines", apart.gap_ms, equals.gap_ms, MAX_GAP
        ),
        ratio("TTFT, p50, of two equal engines", apart.ttft_ms, equals.ttft_ms, MAX_TTFT),
        beside("gap between tokens, p99", apart.gap_ms, equals.gap_ms, "ms"),
        beside("TTFT, p50", apart.ttft_ms, equals.ttft_ms, "ms"),
        beside("throughput", apart.tokens_per_s, equals.tokens_per_s, "tokens/s"),
        Figure(name="requests split", value=apart.num_split / num, unit="1"),
        Figure(
            name="mean time of a hand-over",
            value=1e3 * apart.hand_over_s / max(1, apart.num_split),
            unit="ms",
        ),
        Figure(name="requests asked", value=1.0 / gap_s, unit="1/s"),
    ]


def main(options: Options, num_ranks: int) -> int:
    """Measure and report."""
    sizes = replace(TINY if options.is_tiny else FULL, tp=num_ranks // 2)
    figures = asyncio.run(measure(options, sizes, DENSE_L16))
    name = name_with_ranks("roles", num_ranks)
    return options.report(name, {"model": "dense_l16", **asdict(sizes)}, figures)


if __name__ == "__main__":
    run(lambda: main(*parse_options_of_two(__doc__)))
