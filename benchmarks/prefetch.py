"""Times to the first token of a prompt that L3 holds, on storage with a set latency and bandwidth.

    python -m benchmarks.prefetch

A whole engine in one process: real actors, links, arena and copies around a model that only sleeps.
A perfect pipeline takes the latency of `exists` and of the first read, the time of all bytes on
the link, and one step. With slow copies the bytes take half of that time again from L2 to L1, which
only a load that starts early can hide.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.engine.engines import Answer, Prompts, ask, engine_sections, expect_sources
from benchmarks.engine.sleeping_model import PAGE_TOKENS, build_model
from benchmarks.model.model_shapes import make_layout
from benchmarks.records.command_line import add_results, count, make_parser, positive, quantity, run
from benchmarks.records.record import Figure, report
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES, KvLayout
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE

HEAD_DIM = 8
NUM_LAYERS = 16
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
    slow_copies_s: float = 0.35
    """The time of the whole prompt's copy from L2 to L1, where copies are made slow."""
    repeats: int = 5

    @property
    def num_pages(self) -> int:
        """The pages of the prompt, as L3 holds it."""
        return self.prompt_tokens // PAGE_TOKENS

    @property
    def layout(self) -> KvLayout:
        """64 KiB per page."""
        return make_layout(PAGE_TOKENS, num_layers=NUM_LAYERS, num_kv_heads=1, head_dim=HEAD_DIM)

    @property
    def perfect_ms(self) -> float:
        """The time to the first token of a perfect pipeline."""
        num_bytes = self.num_pages * (OBJECT_HEADER_BYTES + self.layout.payload_bytes(0))
        return 1e3 * (2 * self.latency_s + num_bytes / self.max_bytes_per_s + self.step_s)

    def config(self, strategy: PrefetchStrategy) -> EngineConfig:
        """An engine that waits for L3 by `strategy`."""
        page_bytes = self.layout.host_page_bytes(0)
        sections = engine_sections(
            max_model_len=2 * self.prompt_tokens,
            page_size=PAGE_TOKENS,
            l1_pages=3 * self.num_pages,
            l2_bytes=4 * self.num_pages * page_bytes,
            chunk_tokens=self.chunk_tokens,
        )

        l3 = {
            "backend": "fake",
            "max_bytes": 64 * self.num_pages * page_bytes,
            "latency_s": self.latency_s,
            "max_bytes_per_s": self.max_bytes_per_s,
        }
        prefetch = {"strategy": strategy.value, "cap": "none"}
        return load_config(
            {"model": {"path": "none"}, "cache": {"l3": l3, "prefetch": prefetch}}, sections
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
        """Ask with other last tokens each time."""
        return await ask(
            self._engine.client.generate, prompt + self._prompts.draw(self._setting.new_tokens), 1
        )

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


async def measure_waiting(engine: Engine, setting: Setting, name: str) -> list[Figure]:
    """A hit that is waited for."""
    answers = await _hits(engine, setting)
    for answer in answers:
        expect_sources(answer, l3=setting.prompt_tokens)
    ttft_ms = median(answer.ttft_ms for answer in answers)
    ratio = ttft_ms / setting.perfect_ms
    return [
        Figure(name=f"{name}_ttft", value=ttft_ms, unit="ms"),
        Figure(name=f"{name}_ratio", value=ratio, unit="of perfect", max_value=MAX_HIT_RATIO),
    ]


async def measure_not_waiting(engine: Engine, setting: Setting, name: str) -> list[Figure]:
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
        Figure(name=f"{name}_ttft", value=median(hits), unit="ms"),
        Figure(name="cold_ttft", value=median(colds), unit="ms"),
        Figure(name=f"{name}_ratio", value=ratio, unit="of cold", max_value=MAX_COLD_RATIO),
    ]


async def measure_shared(engine: Engine, setting: Setting, name: str) -> list[Figure]:
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
        Figure(name=f"{name}_reads", value=reads, unit="per page", min_value=1.0, max_value=1.0),
        Figure(name=f"{name}_slowest_ttft", value=slowest_ms, unit="ms"),
    ]


Measure = Callable[[Engine, Setting, str], Awaitable[list[Figure]]]


@dataclass(frozen=True, slots=True)
class Case:
    """One measure, on an engine of its own."""

    name: str
    strategy: PrefetchStrategy
    measure: Measure
    has_slow_copies: bool = False


CASES = (
    Case("wait_complete", PrefetchStrategy.WAIT_COMPLETE, measure_waiting),
    Case(
        "wait_complete_slow_copies",
        PrefetchStrategy.WAIT_COMPLETE,
        measure_waiting,
        has_slow_copies=True,
    ),
    Case("timeout", PrefetchStrategy.TIMEOUT, measure_waiting),
    Case("best_effort", PrefetchStrategy.BEST_EFFORT, measure_not_waiting),
    Case("shared", PrefetchStrategy.WAIT_COMPLETE, measure_shared),
)


async def measure_all(setting: Setting) -> list[Figure]:
    """Measure every case."""
    figures = [Figure(name="perfect_ttft", value=setting.perfect_ms, unit="ms")]
    for case in CASES:
        page_copy_s = setting.slow_copies_s / setting.num_pages if case.has_slow_copies else 0.0
        build: Any = partial(
            build_model, layout=setting.layout, step_s=setting.step_s, page_copy_s=page_copy_s
        )
        async with in_process_engine(setting.config(case.strategy), build) as engine:
            figures += await case.measure(Engine(engine, setting), setting, case.name)
            await engine.check()
    return figures


def main() -> int:
    """Measure, print the record, and return 1 below a bar."""
    parser = make_parser(__doc__)
    defaults = Setting()
    parser.add_argument("--step-ms", type=positive, default=1e3 * defaults.step_s)
    parser.add_argument("--latency-ms", type=quantity, default=1e3 * defaults.latency_s)
    parser.add_argument("--max-bytes-per-s", type=count, default=defaults.max_bytes_per_s)
    parser.add_argument("--repeats", type=count, default=defaults.repeats)
    add_results(parser, help="folder for the record")

    arguments = parser.parse_args()
    setting = Setting(
        step_s=arguments.step_ms / 1e3,
        latency_s=arguments.latency_ms / 1e3,
        max_bytes_per_s=arguments.max_bytes_per_s,
        repeats=arguments.repeats,
    )
    return report(
        "prefetch", asdict(setting), asyncio.run(measure_all(setting)), keep_in=arguments.results
    )


if __name__ == "__main__":
    run(main)
