"""Memory that an engine gives back when it sleeps, how soon it is awake, and what is lost of it.

    python -m benchmarks.sleep                          # one GPU
    python -m benchmarks.sleep --device cpu --tiny      # a small model; times have no bars

An engine is filled, sleeps and wakes, is asked for the same again, and then sleeps and wakes while
requests come. At last two models take turns: one is asked while the other one sleeps.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.device.ceilings import load_gbps
from benchmarks.engine.engines import (
    DENSE_L16,
    GREEDY,
    Options,
    Prompts,
    add_options,
    dummy_config,
    engine_sections,
    options_of,
    settle,
)
from benchmarks.model.model_shapes import ModelConfig, token_bytes
from benchmarks.records.command_line import count, make_parser, run
from benchmarks.records.record import Figure
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.sampling_params import OutputKind
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine

MIN_GIVEN_BACK = 0.95
MIN_FOUND = 0.95
"""The bar of what first requests find in L2, as a part of what was cached."""
WAKE_FACTOR, WAKE_S = 1.2, 1.0
"""The engine is to be awake within so many times what its weights take to load, and so long."""
SMALL: ModelConfig = {
    **DENSE_L16,
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is asked for, and how often the engine sleeps."""

    context_tokens: int = 8192
    num_contexts: int = 16
    output_tokens: int = 32
    page_size: int = 64
    chunk_tokens: int = 8192
    num_streams: int = 8
    num_cycles: int = 50
    num_turns: int = 20

    def sections(self, options: Options, model: ModelConfig) -> dict[str, Any]:
        """The configuration of an engine whose L1 the contexts fill, and whose L2 has room.

        What bfloat16 decides depends on what is computed together, but not if it is deterministic.
        """
        length = self.context_tokens + self.output_tokens + self.page_size
        num_pages = (self.num_contexts + 1) * -(-length // self.page_size)
        l2_bytes = 2 * num_pages * self.page_size * token_bytes(model, options.dtype_bytes)
        sections = engine_sections(
            max_model_len=length,
            page_size=self.page_size,
            l1_pages=num_pages,
            l2_bytes=l2_bytes,
            chunk_tokens=self.chunk_tokens,
        )
        sections["model"]["deterministic"] = options.device == "cuda"
        return sections

    @property
    def num_cacheable(self) -> int:
        """The tokens that a cache can serve of contexts of whole pages: the last is computed."""
        return self.num_contexts * (self.context_tokens - 1)


FULL = Sizes()
TINY = Sizes(context_tokens=512, num_contexts=8, output_tokens=8, page_size=16, chunk_tokens=512)


class Asker:
    """Asks an engine for outputs of its contexts, and knows what they were the first time."""

    def __init__(self, engine: InProcessEngine, sizes: Sizes, prompts: Sequence[list[int]]) -> None:
        self.engine, self.sizes = engine, sizes
        self._prompts = prompts
        self._expected: dict[int, list[int]] = {}
        self.num_asked = self.num_failed = self.num_wrong = 0

    async def ask(self, number: int) -> RequestOutput | None:
        """The output of one context; None, and counted, if it fails."""
        params = replace(
            GREEDY,
            max_tokens=self.sizes.output_tokens,
            ignore_eos=True,
            output_kind=OutputKind.FINAL,
            detokenize=False,
        )
        self.num_asked += 1
        try:
            [output] = [
                each async for each in self.engine.client.generate(self._prompts[number], params)
            ]
        except Exception as error:  # noqa: BLE001  whatever it is, a request is lost
            print(f"a request failed: {error!r}")
            self.num_failed += 1
            return None
        tokens = list(output.outputs[0].token_ids)
        self.num_wrong += self._expected.setdefault(number, tokens) != tokens
        return output

    async def ask_all(self) -> int:
        """Ask for all contexts at once. Returns how many of their tokens came from L2."""
        outputs = await asyncio.gather(*map(self.ask, range(len(self._prompts))))
        await settle(self.engine.stats)
        cached = [each.metrics.cached_tokens_by_source for each in outputs if each is not None]
        return sum(by_source.get("l2", 0) for by_source in cached)

    async def ask_on(self, first: int, stop: asyncio.Event) -> None:
        """Ask for one context after the other until it is to stop, or one is lost."""
        number = first
        while not stop.is_set() and await self.ask(number % len(self._prompts)) is not None:
            number += 1


@asynccontextmanager
async def filled(
    options: Options, sizes: Sizes, model: ModelConfig, name: str
) -> AsyncIterator[Asker]:
    """An engine of a model in this process, which has been asked for all of its contexts."""
    async with (
        dummy_config(options, model, sizes.sections(options, model)) as config,
        in_process_engine(config, name=name) as engine,
    ):
        draw = Prompts(int(model["vocab_size"]))
        prompts = [draw.draw(sizes.context_tokens) for _ in range(sizes.num_contexts)]
        asker = Asker(engine, sizes, prompts)
        await asker.ask_all()
        tell(f"engine {name} is filled")
        yield asker


def used_bytes(device: str) -> int:
    """What all have of the GPU, or this process of the host's memory, that of L2 left out."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    lines = Path("/proc/self/status").read_text().splitlines()
    [anonymous] = [line for line in lines if line.startswith("RssAnon:")]
    return 1024 * int(anonymous.split()[1])


async def measure_sleep(options: Options, asker: Asker) -> list[Figure]:
    """Give back pages, then weights, and take both again."""
    engine, device = asker.engine, options.device
    await asker.ask_all()
    used = used_bytes(device)
    pages = await engine.fall_asleep(False)
    kv_bytes, weight_bytes = pages["held_bytes"] - pages["left_bytes"], pages["left_bytes"]
    without_pages = used_bytes(device)
    all_of_it = await engine.fall_asleep(True)
    without_all = used_bytes(device)

    began_s = time.monotonic()
    await engine.wake()
    wake_s = time.monotonic() - began_s
    found = await asker.ask_all()
    load_s = weight_bytes / load_gbps(device, weight_bytes) / 1e9
    # On the CPU the weights stay in the process, where they are parked.
    gone = used - (without_all if device == "cuda" else without_pages)
    held = kv_bytes + weight_bytes if device == "cuda" else kv_bytes
    return [
        _part("given back, as ranks count it", 1 - all_of_it["left_bytes"] / pages["held_bytes"]),
        Figure(
            name="given back, as the device or the system counts it",
            value=gone / held,
            unit="1",
            min_value=options.bar(MIN_GIVEN_BACK),
        ),
        Figure(name="pages", value=kv_bytes / 1e6, unit="MB"),
        Figure(name="weights", value=weight_bytes / 1e6, unit="MB"),
        Figure(
            name="until awake",
            value=wake_s,
            unit="s",
            max_value=options.bar(WAKE_FACTOR * load_s + WAKE_S),
            baseline=load_s,
            baseline_name="contiguous copy of the weights",
        ),
        Figure(
            name="found in L2 by first requests",
            value=found / asker.sizes.num_cacheable,
            unit="1",
            min_value=MIN_FOUND,
        ),
    ]


def _part(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, unit="1", min_value=MIN_GIVEN_BACK)


async def measure_cycles(asker: Asker) -> list[Figure]:
    """Sleep and wake, again and again, while requests come."""
    engine, sizes = asker.engine, asker.sizes
    num_asked, stop = asker.num_asked, asyncio.Event()
    width = sizes.num_contexts // sizes.num_streams
    streams = [
        asyncio.create_task(asker.ask_on(number * width, stop))
        for number in range(sizes.num_streams)
    ]
    began_s = time.monotonic()
    for cycle in range(sizes.num_cycles):
        cycle_s = time.monotonic()
        await engine.fall_asleep(cycle % 2 == 0)
        asleep_s = time.monotonic()
        await engine.wake()
        awake_s = time.monotonic()
        tell(
            f"cycle {cycle}: {asleep_s - cycle_s:.2f} s until asleep, "
            f"{awake_s - asleep_s:.2f} s until awake"
        )
    seconds = time.monotonic() - began_s
    stop.set()
    await asyncio.gather(*streams)
    await settle(engine.stats)
    await engine.check()
    return [
        Figure(name="time of a cycle", value=seconds / sizes.num_cycles, unit="s"),
        Figure(name="requests beside cycles", value=asker.num_asked - num_asked, unit="requests"),
        *_losses("cycles", [asker]),
    ]


async def measure_turns(askers: Sequence[Asker]) -> list[Figure]:
    """Put one model to sleep and wake the other one, in turns, and ask for all that it knows.

    The second of them sleeps. What either has lost before is told again.
    """
    now, then = askers
    found, began_s, switched_s = 0, time.monotonic(), 0.0
    for _ in range(now.sizes.num_turns):
        began_s = time.monotonic()
        await now.engine.fall_asleep(True)
        await then.engine.wake()
        switched_s += (seconds := time.monotonic() - began_s)
        tell(f"a turn in {seconds:.2f} s")
        now, then = then, now
        found += await now.ask_all()
    for each in askers:
        await each.engine.check()
    num_turns = now.sizes.num_turns
    return [
        Figure(name="time of a turn", value=switched_s / num_turns, unit="s"),
        Figure(
            name="found in L2 after turns",
            value=found / num_turns / now.sizes.num_cacheable,
            unit="1",
            min_value=MIN_FOUND,
        ),
        *_losses("turns", askers),
    ]


def _losses(when: str, askers: Sequence[Asker]) -> list[Figure]:
    failed, wrong = sum(each.num_failed for each in askers), sum(each.num_wrong for each in askers)
    return [
        Figure(name=f"requests lost, {when}", value=failed, unit="requests", max_value=0),
        Figure(name=f"outputs that differ, {when}", value=wrong, unit="requests", max_value=0),
    ]


def tell(line: str) -> None:
    """Say at once how far it is: a run that is cut off has told what it knew."""
    print(line, file=sys.stderr, flush=True)


async def measure(options: Options, sizes: Sizes, model: ModelConfig) -> list[Figure]:
    """All of it."""
    other_model = {**model, "num_hidden_layers": int(model["num_hidden_layers"]) // 2}
    async with filled(options, sizes, model, "m0") as alone:
        figures = await measure_sleep(options, alone)
        for figure in figures:
            tell(f"{figure.name}: {figure.value:.4g} {figure.unit}")
        figures += await measure_cycles(alone)
        await alone.engine.fall_asleep(True)
        async with filled(options, sizes, other_model, "m1") as other:
            return figures + await measure_turns([other, alone])


def main(options: Options, num_cycles: int | None, num_turns: int | None) -> int:
    """Measure and report."""
    sizes, model = (TINY, SMALL) if options.is_tiny else (FULL, DENSE_L16)
    sizes = replace(
        sizes,
        num_cycles=num_cycles or sizes.num_cycles,
        num_turns=num_turns or sizes.num_turns,
    )
    figures = asyncio.run(measure(options, sizes, model))
    return options.report("sleep", {"model": "dense_l16", **asdict(sizes)}, figures)


def command() -> int:
    """Read the command line and measure."""
    command_line = make_parser(__doc__)
    add_options(command_line, Options())
    command_line.add_argument("--cycles", type=count, help="of sleep, beside requests")
    command_line.add_argument("--turns", type=count, help="of two models")
    read = command_line.parse_args()
    return main(options_of(read), read.cycles, read.turns)


if __name__ == "__main__":
    run(command)
