"""What it costs that equal requests have equal bits, and whether they have.

    python -m benchmarks.deterministic                       # dense_l16, moe_l12, gpt-oss; one GPU
    python -m benchmarks.deterministic --model moe_l12 --requests 200
    python -m benchmarks.deterministic --device cpu --tiny

An engine with `model.deterministic` and one without serve the same load, in process: prompts of 64
to 1,500 tokens that begin alike in groups, all at once, so that batches have 1 to 128 rows and
prompts are cut anywhere; half of them are drawn at a temperature. The first round finds nothing in
any cache, the second comes in another order and finds prefixes in L1, the third finds them in L2.
Every token and every logprob of a request has to be that of its first round, bit for bit. Compared
are tokens out per second, and the time to the first token of one prompt at a time.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.engine.engines import (
    DENSE_TINY,
    MOE_TINY,
    Options,
    Prompts,
    add_options,
    dummy_engine,
    engine_sections,
    options_of,
)
from benchmarks.model.model_shapes import SHAPES, ModelConfig
from benchmarks.records.command_line import count, make_parser, run
from benchmarks.records.record import Figure
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.testing.engine import InProcessEngine

MODELS = ("dense_l16", "moe_l12", "gpt-oss-20b")
MIN_SPEED_RATIO = 0.90
PAGE_SIZE = 64
PER_GROUP = 4
"""Requests whose prompts begin alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked."""

    num_requests: int
    shared_tokens: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    timed_tokens: int
    """The tokens of the prompts that are asked one at a time."""
    chunk_tokens: int


FULL_LOAD = Load(
    num_requests=660,
    shared_tokens=512,
    prompt_tokens=(64, 1500),
    output_tokens=(8, 64),
    timed_tokens=4096,
    chunk_tokens=2048,
)
TINY_LOAD = Load(
    num_requests=12,
    shared_tokens=64,
    prompt_tokens=(8, 150),
    output_tokens=(2, 6),
    timed_tokens=128,
    chunk_tokens=64,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and how it is continued."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one engine did with the load."""

    tokens_per_s: float
    ttft_ms: float
    num_different: int
    """The requests of later rounds of which some bit differs from the first."""


def draw_requests(load: Load, vocab_size: int) -> list[Request]:
    """The same requests whenever they are drawn."""
    prompts, random_numbers = Prompts(vocab_size), random.Random(7)
    requests = []
    shared: list[int] = []
    for index in range(load.num_requests):
        if index % PER_GROUP == 0:
            shared = prompts.draw(load.shared_tokens)
        prompt = prompts.draw(random_numbers.randint(*load.prompt_tokens))
        params = SamplingParams(
            max_tokens=random_numbers.randint(*load.output_tokens),
            temperature=0.0 if index % 2 else 0.8,
            seed=index,
            logprobs=2,
            ignore_eos=True,
            output_kind=OutputKind.FINAL,
        )
        requests.append(Request(prompt=shared + prompt, params=params))
    return requests


async def measure(options: Options, model: ModelConfig, load: Load, *, fixed: bool) -> Measured:
    """Serve all rounds by one engine."""
    sections = engine_sections(
        max_model_len=8192,
        page_size=PAGE_SIZE if not options.is_tiny else 16,
        l1_pages=6000 if not options.is_tiny else 512,
        l2_bytes=(24 << 30) if not options.is_tiny else (64 << 20),
        chunk_tokens=load.chunk_tokens,
        max_running_requests=128,
    )
    sections["model"] |= {"deterministic": fixed, "dtype": "bfloat16"}
    vocab_size = int(model["vocab_size"])
    requests = draw_requests(load, vocab_size)
    async with dummy_engine(options, model, sections) as engine:
        # What is done for the first time is not timed.
        await _ask_all(engine, requests[-4:])
        await engine.flush()
        begun_s = time.perf_counter()
        first = await _ask_all(engine, requests)
        wall_s = time.perf_counter() - begun_s
        num_different = 0
        for tier in ("l1", "l2"):
            await engine.settle()
            if tier == "l2":
                await engine.flush_l1()
            order = random.Random(tier).sample(range(len(requests)), len(requests))
            outputs = await _ask_all(engine, [requests[index] for index in order])
            pairs = zip(outputs, (first[index] for index in order), strict=True)
            num_different += sum(_bits(output) != _bits(before) for output, before in pairs)
        times_ms = await _first_tokens_ms(engine, load, vocab_size, 4 + options.repeats)
    num_tokens = sum(len(output.outputs[0].token_ids) for output in first)
    return Measured(
        tokens_per_s=num_tokens / wall_s, ttft_ms=median(times_ms), num_different=num_different
    )


async def _ask_all(engine: InProcessEngine, requests: Sequence[Request]) -> list[RequestOutput]:
    async def ask(request: Request) -> RequestOutput:
        [output] = [each async for each in engine.client.generate(request.prompt, request.params)]
        return output

    return list(await asyncio.gather(*map(ask, requests)))


async def _first_tokens_ms(
    engine: InProcessEngine, load: Load, vocab_size: int, times: int
) -> list[float]:
    """Times to the first token of prompts of which nothing is cached, one after another."""
    prompts = Prompts(vocab_size)
    params = SamplingParams(max_tokens=1, temperature=0.0, output_kind=OutputKind.FINAL)
    times_ms: list[float] = []
    for _ in range(times):
        request = Request(prompt=prompts.draw(load.timed_tokens + len(times_ms)), params=params)
        begun_s = time.perf_counter()
        await _ask_all(engine, [request])
        times_ms.append(1e3 * (time.perf_counter() - begun_s))
    return times_ms


def _bits(output: RequestOutput) -> tuple[Any, ...]:
    [answer] = output.outputs
    return answer.token_ids, answer.logprobs


async def compare(options: Options, name: str, load: Load) -> list[Figure]:
    """The mode on and off, one after the other."""
    tiny = MOE_TINY if "moe" in name else DENSE_TINY
    model = tiny if options.is_tiny else SHAPES[name]
    fixed = await measure(options, model, load, fixed=True)
    free = await measure(options, model, load, fixed=False)
    ratios = {
        "throughput": fixed.tokens_per_s / free.tokens_per_s,
        f"speed to the first of {load.timed_tokens} tokens": free.ttft_ms / fixed.ttft_ms,
    }
    return [
        Figure(
            name=f"requests with other bits, {name}",
            value=fixed.num_different,
            unit="1",
            max_value=0,
            baseline=free.num_different,
            baseline_name="with the mode off",
        ),
        Figure(name=f"tokens out, {name}", value=fixed.tokens_per_s, unit="tokens/s"),
        *(
            Figure(
                name=f"{what} over that with the mode off, {name}",
                value=ratio,
                unit="1",
                min_value=options.bar(MIN_SPEED_RATIO),
            )
            for what, ratio in ratios.items()
        ),
    ]


def main() -> int:
    """Measure, report, and return the exit status."""
    parser = make_parser(__doc__)
    add_options(parser, Options())
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--requests", type=count)
    arguments = parser.parse_args()
    options = options_of(arguments)
    load = TINY_LOAD if options.is_tiny else FULL_LOAD
    if arguments.requests:
        load = replace(load, num_requests=arguments.requests)
    figures = []
    for name in arguments.model:
        figures += asyncio.run(compare(options, name, load))
    return options.report("deterministic", {"requests": load.num_requests}, figures)


if __name__ == "__main__":
    run(main)
