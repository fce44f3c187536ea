"""Times to the first token of sessions that said what comes next of them, and of others.

    python -m benchmarks.sessions

A whole engine in one process: real actors, links, arena and copies around a model that only sleeps,
and an L3 with a set latency and bandwidth. A session whose pages L3 alone has says that a tool
answers in so many seconds: what its next request takes then, beside one from L2 and one that says
nothing, tells how much of L3's time the pause has hidden; beside one from L1, how much of L2's. And
a session asks to be kept, a flood of other prompts goes through L1 and L2 several times over, and
the session goes on.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.engine.engines import Answer, Prompts, ask, engine_sections, expect_sources
from benchmarks.engine.sleeping_model import PAGE_TOKENS, build_model
from benchmarks.model.model_shapes import make_layout
from benchmarks.records.command_line import add_results, count, make_parser, positive, run
from benchmarks.records.record import Figure, report
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.retention import hint_for, retention_of
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.loading import load_config
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE

MIN_HIDDEN = 0.8
MAX_FLOODED_RATIO = 1.3
MAX_EARLY_RATIO = 1.3
_L1_PROMPTS, _L2_PROMPTS = 6, 12


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Prompts, storage and model."""

    prompt_tokens: int = 16_384
    new_tokens: int = 16
    chunk_tokens: int = 8192
    step_s: float = 0.2
    latency_s: float = 0.02
    max_bytes_per_s: int = 16_000_000
    pause_s: float = 5.0
    """How long the tool runs. A fetch of the prompt takes a second."""
    num_flood: int = 24
    repeats: int = 5

    @property
    def layout(self) -> KvLayout:
        """64 KiB per page."""
        return make_layout(PAGE_TOKENS, num_layers=16, num_kv_heads=1, head_dim=8)

    def config(self) -> EngineConfig:
        """An engine that waits for all that L3 has."""
        page_bytes = self.layout.host_page_bytes(0)
        num_pages = self.prompt_tokens // PAGE_TOKENS + 1
        sections = engine_sections(
            max_model_len=2 * self.prompt_tokens,
            page_size=PAGE_TOKENS,
            l1_pages=_L1_PROMPTS * num_pages,
            l2_bytes=_L2_PROMPTS * num_pages * page_bytes,
            chunk_tokens=self.chunk_tokens,
        )
        l3 = {
            "backend": "fake",
            "max_bytes": 64 * num_pages * page_bytes,
            "latency_s": self.latency_s,
            "max_bytes_per_s": self.max_bytes_per_s,
        }
        prefetch = {"strategy": "wait_complete", "cap": "none"}
        return load_config(
            {"model": {"path": "none"}, "cache": {"l3": l3, "prefetch": prefetch}}, sections
        )


class Session:
    """A session of one engine, whose requests all begin with the same prompt."""

    def __init__(self, engine: InProcessEngine, setting: Setting, prompts: Prompts) -> None:
        self._engine = engine
        self._setting = setting
        self._prompts = prompts
        self._prompt = prompts.draw(setting.prompt_tokens)
        self._name = f"s{self._prompt[:4]}"

    async def ask(self, hint: dict[str, Any] | None = None) -> Answer:
        """Ask with other last tokens each time."""
        options = RequestOptions(session_id=self._name, retention=retention_of(hint))
        prompt = self._prompt + self._prompts.draw(self._setting.new_tokens)
        generate = self._engine.client.generate
        return await ask(lambda tokens, params: generate(tokens, params, None, options), prompt, 1)

    def say(self, hint: dict[str, Any]) -> None:
        """Give a hint by itself."""
        self._engine.client.tell_all(hint_for(self._name, hint))

    async def leave_to_l3(self) -> None:
        """Let writes drain, and empty L1 and L2."""
        await self._engine.settle(timeout_s=120.0)
        await self._engine.flush()

    async def leave_to_l2(self) -> None:
        """Let copies end, and empty L1."""
        await self._engine.settle(timeout_s=120.0)
        await self._engine.flush_l1()

    async def flood(self) -> None:
        """Have other prompts go through the engine, two at a time."""
        for _ in range(self._setting.num_flood // 2):
            pair = [self._prompts.draw(self._setting.prompt_tokens) for _ in range(2)]
            await asyncio.gather(*(ask(self._engine.client.generate, each, 1) for each in pair))
        await self._engine.settle(timeout_s=120.0)


async def measure_returns(session: Session, setting: Setting) -> list[Figure]:
    """Requests after a pause: from each tier, and from L2 and L3 with a hint."""
    await session.ask()
    warm, from_l3, from_l2, hinted, early = [], [], [], [], []
    for _ in range(setting.repeats):
        warm.append(await session.ask())
        await session.leave_to_l3()
        from_l3.append(await session.ask())

        await session.leave_to_l2()
        from_l2.append(await session.ask())

        await session.leave_to_l2()
        session.say({"resume_in_s": setting.pause_s})
        await asyncio.sleep(setting.pause_s)
        early.append(await session.ask())

        await session.leave_to_l3()
        session.say({"resume_in_s": setting.pause_s})
        await asyncio.sleep(setting.pause_s)
        hinted.append(await session.ask())

    for answer in from_l3:
        expect_sources(answer, l3=setting.prompt_tokens)
    for answer in from_l2:
        expect_sources(answer, l2=setting.prompt_tokens)
    for answer in (*warm, *early):
        expect_sources(answer, l1=setting.prompt_tokens)
    l3_ms, l2_ms, hinted_ms = map(_median_ms, (from_l3, from_l2, hinted))
    warm_ms, early_ms = map(_median_ms, (warm, early))
    return [
        Figure(name="return_from_l1_ttft", value=warm_ms, unit="ms"),
        Figure(name="return_early_ttft", value=early_ms, unit="ms"),
        Figure(
            name="return_early_ratio",
            value=early_ms / warm_ms,
            unit="of warm",
            max_value=MAX_EARLY_RATIO,
            baseline=l2_ms / warm_ms,
            baseline_name="a session that L2 has, and that says nothing",
        ),
        Figure(name="return_from_l3_ttft", value=l3_ms, unit="ms"),
        Figure(name="return_from_l2_ttft", value=l2_ms, unit="ms"),
        Figure(name="return_hinted_ttft", value=hinted_ms, unit="ms"),
        Figure(
            name="return_hidden",
            value=(l3_ms - hinted_ms) / (l3_ms - l2_ms),
            unit="of L3's time",
            min_value=MIN_HIDDEN,
        ),
    ]


async def measure_flood(session: Session, setting: Setting) -> list[Figure]:
    """A kept session after a flood, beside one from L1, and one that was not kept."""
    warm, kept, plain = [], [], []
    for _ in range(setting.repeats):
        await session.ask()
        warm.append(await session.ask({"keep_s": 600.0}))
        await session.flood()
        kept.append(await session.ask())
        await session.flood()
        plain.append(await session.ask())

    for answer in (*warm, *kept):
        expect_sources(answer, l1=setting.prompt_tokens)
    warm_ms, kept_ms, plain_ms = map(_median_ms, (warm, kept, plain))
    return [
        Figure(name="flood_warm_ttft", value=warm_ms, unit="ms"),
        Figure(name="flood_kept_ttft", value=kept_ms, unit="ms"),
        Figure(
            name="flood_kept_ratio",
            value=kept_ms / warm_ms,
            unit="of warm",
            max_value=MAX_FLOODED_RATIO,
            baseline=plain_ms / warm_ms,
            baseline_name="a session that was not kept",
        ),
    ]


def _median_ms(answers: Sequence[Answer]) -> float:
    return median(answer.ttft_ms for answer in answers)


async def measure_all(setting: Setting) -> list[Figure]:
    """Measure both, on one engine each."""
    figures: list[Figure] = []
    build: Any = partial(build_model, layout=setting.layout, step_s=setting.step_s)
    for measure in (measure_returns, measure_flood):
        async with in_process_engine(setting.config(), build) as engine:
            figures += await measure(Session(engine, setting, Prompts(VOCAB_SIZE)), setting)
            await engine.check()
    return figures


def main() -> int:
    """Measure, print the record, and return 1 below a bar."""
    parser = make_parser(__doc__)
    defaults = Setting()
    parser.add_argument("--step-ms", type=positive, default=1e3 * defaults.step_s)
    parser.add_argument("--pause-s", type=positive, default=defaults.pause_s)
    parser.add_argument("--repeats", type=count, default=defaults.repeats)
    add_results(parser, help="folder for the record")
    arguments = parser.parse_args()
    setting = Setting(
        step_s=arguments.step_ms / 1e3, pause_s=arguments.pause_s, repeats=arguments.repeats
    )
    return report(
        "sessions", asdict(setting), asyncio.run(measure_all(setting)), keep_in=arguments.results
    )


if __name__ == "__main__":
    run(main)
