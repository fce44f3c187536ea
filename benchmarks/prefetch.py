"""Times to the first token of a prompt that L3 holds, on storage with a set latency and bandwidth.

    python -m benchmarks.prefetch

A whole engine in one process: real actors, links, arena and copies around a model that only sleeps. A perfect pipeline
takes the latency of the search and of the first read, the time of all bytes on the link, and one step.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.engines import Answer, Prompts, ask, expect_sources
from benchmarks.record import Figure, report
from raydix.runtime.actors.gpu_facts import GpuFacts
from raydix.runtime.actors.gpu_model import GpuModel, HostTimer
from raydix.runtime.actors.sleeping_runner import MAX_POSITIONS, VOCAB_SIZE, SleepingRunner
from raydix.runtime.cache.kv_layout import OBJECT_HEADER_BYTES, GroupKind, KvGroup, KvLayout
from raydix.runtime.config import EngineConfig, load_config
from raydix.runtime.in_process import InProcessEngine, in_process_engine
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import OnDone, OnError, TransferEngine

PAGE_TOKENS = 64
HEAD_DIM = 128
MAX_HIT_RATIO = 1.2
MAX_COLD_RATIO = 1.05
NUM_SHARERS = 16


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The prompt, the storage and the model."""

    prompt_tokens: int = 32_768
    new_tokens: int = 16
    """Beyond what L3 holds."""
    chunk_tokens: int = 2048
    step_s: float = 0.1
    latency_s: float = 0.005
    max_bytes_per_s: int = 50_000_000
    repeats: int = 5

    @property
    def num_pages(self) -> int:
        """Of the prompt, as L3 holds it."""
        return self.prompt_tokens // PAGE_TOKENS

    @property
    def layout(self) -> KvLayout:
        """64 KiB per page."""
        group = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=HEAD_DIM)
        return KvLayout(page_size=PAGE_TOKENS, dtype="float32", dtype_bytes=4, groups=(group,))

    @property
    def perfect_ms(self) -> float:
        """See the module."""
        num_bytes = self.num_pages * (OBJECT_HEADER_BYTES + self.layout.payload_bytes(0))
        return 1e3 * (2 * self.latency_s + num_bytes / self.max_bytes_per_s + self.step_s)

    def config(self, strategy: str) -> EngineConfig:
        """An engine that waits for L3 by `strategy`."""
        page_bytes = self.layout.host_page_bytes(0)
        return load_config(
            {
                "model": {"path": "none", "max_model_len": 2 * self.prompt_tokens},
                "cache": {
                    "page_size": PAGE_TOKENS,
                    "l1": {"num_pages": 3 * self.num_pages},
                    "l2": {"bytes_per_node": 4 * self.num_pages * page_bytes},
                    "l3": {
                        "backend": "fake",
                        "max_bytes": 64 * self.num_pages * page_bytes,
                        "latency_s": self.latency_s,
                        "max_bytes_per_s": self.max_bytes_per_s,
                    },
                    "prefetch": {"strategy": strategy, "cap": "none"},
                },
                "scheduler": {"chunked_prefill_tokens": self.chunk_tokens},
            }
        )


def build_model(config: EngineConfig, device_index: int, *, layout: KvLayout, step_s: float) -> GpuModel:
    """A model that sleeps, over real pages."""
    num_pages = config.cache.l1.num_pages
    assert num_pages is not None
    pools = make_pools(layout, num_pages, torch.device("cpu"))

    def make_transfers(arena: HostArena, on_done: OnDone, on_error: OnError) -> TransferEngine:
        return CpuTransfers(layout, pools, arena, on_done=on_done, on_error=on_error)

    facts = GpuFacts(
        pid=os.getpid(),
        device="none",
        fingerprint=bytes(32),
        layout=layout,
        num_pages=num_pages,
        weight_bytes=0,
        max_position_embeddings=MAX_POSITIONS,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(),
    )
    return GpuModel(
        facts=facts,
        runner=SleepingRunner(step_s),
        make_timer=HostTimer,
        make_transfers=make_transfers,
        enter_thread=lambda: None,
    )


class Engine:
    """Asks one engine about prompts of which L3 alone holds what was stored."""

    def __init__(self, engine: InProcessEngine, setting: Setting) -> None:
        self._engine = engine
        self._setting = setting
        self._prompts = Prompts(VOCAB_SIZE)

    def draw(self) -> list[int]:
        """A prompt without its last tokens."""
        return self._prompts.draw(self._setting.prompt_tokens)

    async def ask(self, prompt: list[int]) -> Answer:
        """With other last tokens each time."""
        return await ask(self._engine.client.generate, prompt + self._prompts.draw(self._setting.new_tokens), 1)

    async def store(self, prompt: list[int]) -> None:
        """Have L3 alone hold it."""
        await self.ask(prompt)
        await self.empty()

    async def empty(self) -> None:
        """Let writes drain, and empty L1 and L2."""
        await self._engine.settle(timeout_s=120.0)
        await self._engine.flush()

    async def num_read(self) -> int:
        """Objects that the backend has given out so far."""
        stats = await self._engine.stats()
        return int(stats["storage"].get("objects_read", 0))


async def _hits(engine: Engine, setting: Setting) -> list[Answer]:
    prompt = engine.draw()
    await engine.store(prompt)
    answers = []
    for _ in range(setting.repeats):
        answers.append(await engine.ask(prompt))
        await engine.empty()
    return answers


async def measure_waiting(engine: Engine, setting: Setting, strategy: str) -> list[Figure]:
    """A hit that is waited for."""
    answers = await _hits(engine, setting)
    for answer in answers:
        expect_sources(answer, l3=setting.prompt_tokens)
    ttft_ms = median(answer.ttft_ms for answer in answers)
    return [
        Figure(name=f"{strategy}_ttft", value=ttft_ms, unit="ms"),
        Figure(
            name=f"{strategy}_ratio", value=ttft_ms / setting.perfect_ms, unit="of perfect", max_value=MAX_HIT_RATIO
        ),
    ]


async def measure_not_waiting(engine: Engine, setting: Setting, strategy: str) -> list[Figure]:
    """A prompt that L3 holds, in turns with one that it does not."""
    known = engine.draw()
    await engine.store(known)
    hits, colds = [], []
    for _ in range(setting.repeats):
        hits.append((await engine.ask(known)).ttft_ms)
        await engine.empty()
        colds.append((await engine.ask(engine.draw())).ttft_ms)
        await engine.empty()
    ratio = median(hit / cold for hit, cold in zip(hits, colds, strict=True))
    return [
        Figure(name=f"{strategy}_ttft", value=median(hits), unit="ms"),
        Figure(name="cold_ttft", value=median(colds), unit="ms"),
        Figure(name=f"{strategy}_ratio", value=ratio, unit="of cold", max_value=MAX_COLD_RATIO),
    ]


async def measure_shared(engine: Engine, setting: Setting, strategy: str) -> list[Figure]:
    """Many requests for one prefix at once."""
    prompt = engine.draw()
    await engine.store(prompt)
    before = await engine.num_read()
    answers = await asyncio.gather(*(engine.ask(prompt) for _ in range(NUM_SHARERS)))
    num_read = await engine.num_read() - before
    for answer in answers:
        expect_sources(answer, l3=setting.prompt_tokens)
    slowest_ms = max(answer.ttft_ms for answer in answers)
    reads = num_read / setting.num_pages
    return [
        Figure(name="shared_reads", value=reads, unit="per page", min_value=1.0, max_value=1.0),
        Figure(name="shared_slowest_ttft", value=slowest_ms, unit="ms"),
    ]


Measure = Callable[[Engine, Setting, str], Awaitable[list[Figure]]]
MEASURES: tuple[tuple[str, Measure], ...] = (
    ("wait_complete", measure_waiting),
    ("timeout", measure_waiting),
    ("best_effort", measure_not_waiting),
    ("wait_complete", measure_shared),
)


async def run(setting: Setting) -> list[Figure]:
    """Every measure on an engine of its own."""
    figures = [Figure(name="perfect_ttft", value=setting.perfect_ms, unit="ms")]
    build: Any = partial(build_model, layout=setting.layout, step_s=setting.step_s)
    for strategy, measure in MEASURES:
        async with in_process_engine(setting.config(strategy), build) as engine:
            figures += await measure(Engine(engine, setting), setting, strategy)
            await engine.check()
    return figures


def main() -> int:
    """Measure, print the record, and return 1 below a bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Setting()
    parser.add_argument("--step-ms", type=float, default=1e3 * defaults.step_s)
    parser.add_argument("--latency-ms", type=float, default=1e3 * defaults.latency_s)
    parser.add_argument("--max-bytes-per-s", type=int, default=defaults.max_bytes_per_s)
    parser.add_argument("--repeats", type=int, default=defaults.repeats)
    arguments = parser.parse_args()
    setting = Setting(
        step_s=arguments.step_ms / 1e3,
        latency_s=arguments.latency_ms / 1e3,
        max_bytes_per_s=arguments.max_bytes_per_s,
        repeats=arguments.repeats,
    )
    return report("prefetch", asdict(setting), asyncio.run(run(setting)))


if __name__ == "__main__":
    sys.exit(main())
