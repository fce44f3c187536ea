"""What sliding windows save in L2 and on a hit, and whether sessions are found when L1 is full.

    python -m benchmarks.window_cache                  # on cpu
    python -m benchmarks.window_cache --device cuda    # one GPU

On cpu both cores run on a virtual clock, without a model: bytes and hits are what they decide. On
a GPU: the time to the first token of a hit in L2, beside that of an engine which keeps the keys and
values of window layers in full.
"""

import asyncio
import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.cores.scheduler_engine import OUTPUT_TOKEN, Engine
from benchmarks.engine.engines import Answer, Options, dummy_engine, median_ttft_ms, parse_options
from benchmarks.engine.workloads import Contexts
from benchmarks.model.model_shapes import SHAPES, write_config
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure, report
from benchmarks.reload import Asker
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.actors.torch_model import load_gpu_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout, window_pages
from raydix.runtime.config.pool_sizes import pool_pages
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.spec.kv_groups import derive_kv_groups, make_kv_layout
from raydix.runtime.model.spec.spec import LayerSpec
from raydix.runtime.scheduler.settings import SchedulerSettings

PAGE_TOKENS = 64
CONTEXT_TOKENS = 20_480
OUTPUT_TOKENS = 256
FULL, WINDOW = 0, 1
"""The groups of every layout here."""
MAX_MORE_PAGES = 2
"""A checkpoint may take so many pages more than its window has."""
MIN_FACTOR = 4.8
MIN_HIT_RATE = 0.9
OCCUPANCIES = (0.25, 0.5, 0.75, 0.95)
HIT_MODEL = SHAPES["gemma-2-9b"]
HIT_CONTEXTS = Contexts(context_tokens=20_480, l1_tokens=65_536, num_contexts=6, l2_bytes=48 << 30)
MAX_TTFT_RATIO = 0.75


WINDOW_TOKENS = 4096
"""The window of the layout whose bytes are counted."""
SESSION_WINDOW_TOKENS = 1024
"""The window of the layout in which sessions are looked for."""
MODELS: Mapping[str, float] = {"gemma-3-12b": 4.3, "gpt-oss-20b": 1.7}
"""How many times as many tokens L2 has to hold as if it kept all layers in full."""


def half_windowed(window: int) -> KvLayout:
    """Pages in bf16 of 32 layers: half look back over everything, half over a window."""
    full = KvGroup(kind=GroupKind.FULL, layers=tuple(range(16)), num_kv_heads=8, head_dim=128)
    windowed = replace(full, kind=GroupKind.WINDOW, layers=tuple(range(16, 32)), window=window)
    return KvLayout(page_size=PAGE_TOKENS, dtype="bfloat16", dtype_bytes=2, groups=(full, windowed))


def make_engine(layout: KvLayout, num_pages: tuple[int, ...], *, l2_pages: int) -> Engine:
    """One rank with these pools; `l2_pages` 0: L1 alone."""
    settings = SchedulerSettings(
        layout=layout,
        num_lanes=1,
        num_pages=num_pages,
        max_model_len=131_072,
        has_host_memory=l2_pages > 0,
        lookup_deadline_s=1e9,
    )
    return Engine(settings, l2_pages=l2_pages)


def layout_of(shape: str) -> KvLayout:
    """The pages of a model, as its checkpoint's config gives them."""
    with TemporaryDirectory(prefix="raydix-benchmark-") as folder:
        config = read_checkpoint_config(write_config(shape, Path(folder)))
    groups = derive_kv_groups(config.spec.layers)
    return make_kv_layout(groups, page_size=PAGE_TOKENS, dtype="bfloat16", codec=Codec.NONE)


def default_pools(layout: KvLayout, num_full_pages: int) -> tuple[int, ...]:
    """The pools that an engine makes unless it is told otherwise."""
    config = EngineConfig.model_validate({"model": {"path": "unused"}})
    return pool_pages(config, layout, num_full_pages)


def draw_tokens(seed: int, num_tokens: int) -> list[int]:
    """Random tokens, the same for the same seed."""
    return np.random.default_rng(seed).integers(10, 30_000, num_tokens).tolist()


def stored_pages(engine: Engine, group: int) -> int:
    """Pages of a group that L2 holds."""
    return int(engine.host_stats()[f"pages_ready_{group}"])


def measure_bytes() -> list[Figure]:
    """What one prompt leaves in L2 of the window layers, and what a hit on it moves."""
    layout = half_windowed(WINDOW_TOKENS)
    num_pages = CONTEXT_TOKENS // PAGE_TOKENS
    most = window_pages(WINDOW_TOKENS, PAGE_TOKENS) + MAX_MORE_PAGES
    engine = make_engine(layout, (2 * num_pages, 2 * num_pages), l2_pages=4 * num_pages)

    prompt = draw_tokens(0, CONTEXT_TOKENS)
    engine.submit(prompt, max_tokens=1)
    engine.run()
    engine.settle()
    stored = stored_pages(engine, WINDOW)

    engine.flush_l1()
    engine.submit([*prompt, *draw_tokens(1, PAGE_TOKENS)], max_tokens=1)
    engine.run()
    if engine.loaded_pages[FULL] != num_pages:
        raise RuntimeError(f"{engine.loaded_pages[FULL]} FULL pages were loaded, not {num_pages}")
    moved = engine.loaded_pages[WINDOW]

    name = f"W {WINDOW_TOKENS}, {CONTEXT_TOKENS} tokens, window layers"
    figures = []
    for what, pages in (("in L2", stored), ("moved on a hit", moved)):
        figures += [
            Figure(name=f"{name}, {what}", value=pages, unit="pages", max_value=most),
            Figure(
                name=f"{name}, {what}, full storage over it",
                value=num_pages / pages if pages else float("nan"),
                unit="times",
                min_value=MIN_FACTOR,
            ),
        ]
    return figures


def measure_room() -> list[Figure]:
    """Tokens of whole sessions per GiB of L2."""
    figures = []
    for model, min_factor in MODELS.items():
        layout = layout_of(model)
        num_tokens = CONTEXT_TOKENS + OUTPUT_TOKENS
        num_pages = num_tokens // PAGE_TOKENS
        engine = make_engine(layout, (2 * num_pages, 2 * num_pages), l2_pages=4 * num_pages)
        engine.submit(draw_tokens(0, CONTEXT_TOKENS), max_tokens=OUTPUT_TOKENS)
        engine.run()
        engine.settle()

        in_full = num_pages * sum(layout.host_page_bytes(group) for group in (FULL, WINDOW))
        stored_bytes = int(engine.host_stats()["ready_bytes"])
        figures.append(
            Figure(
                name=f"{model}, tokens per GiB of L2",
                value=num_tokens / stored_bytes * 2**30,
                unit="tokens",
                min_value=min_factor * num_tokens / in_full * 2**30,
                baseline=num_tokens / in_full * 2**30,
                baseline_name="all layers in full",
            )
        )
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Sessions that take turns; every turn sends the whole history again."""

    num_sessions: int
    first_tokens: int
    new_tokens: int
    """What a turn adds; 0: the same prompt again and again."""
    shared_tokens: int
    """What all sessions begin with."""
    output_tokens: int
    num_turns: int

    @property
    def num_pages(self) -> int:
        """Pages that all sessions come to, what they share counted once."""
        per_turn = self.new_tokens + (self.output_tokens if self.new_tokens else 0)
        own = self.first_tokens - self.shared_tokens + per_turn * (self.num_turns - 1)
        own += self.output_tokens
        return (self.num_sessions * own + self.shared_tokens) // PAGE_TOKENS


TRAFFIC: Mapping[str, Traffic] = {
    "repeated prompts": Traffic(
        num_sessions=24,
        first_tokens=4096,
        new_tokens=0,
        shared_tokens=0,
        output_tokens=32,
        num_turns=4,
    ),
    "growing sessions": Traffic(
        num_sessions=24,
        first_tokens=2048,
        new_tokens=448,
        shared_tokens=0,
        output_tokens=64,
        num_turns=5,
    ),
    "a shared prompt": Traffic(
        num_sessions=24,
        first_tokens=4096,
        new_tokens=192,
        shared_tokens=3072,
        output_tokens=64,
        num_turns=4,
    ),
}


def hit_rate(layout: KvLayout, num_pages: tuple[int, ...], traffic: Traffic) -> float:
    """The part of all prompt tokens after the first turn that came from L1."""
    engine = make_engine(layout, num_pages, l2_pages=0)
    shared = draw_tokens(0, traffic.shared_tokens)
    own_tokens = traffic.first_tokens - traffic.shared_tokens
    histories = [
        [*shared, *draw_tokens(1 + session, own_tokens)] for session in range(traffic.num_sessions)
    ]

    for turn in range(traffic.num_turns):
        if turn == 1:
            engine.sources.clear()
        for session, history in enumerate(histories):
            engine.submit(history, max_tokens=traffic.output_tokens)
            engine.run()
            if traffic.new_tokens:
                seed = 1000 * (turn + 1) + session
                history += [OUTPUT_TOKEN] * traffic.output_tokens
                history += draw_tokens(seed, traffic.new_tokens)
    return engine.sources["l1"] / sum(engine.sources.values())


def full_pages_for(layout: KvLayout, traffic: Traffic, occupancy: float) -> int:
    """The FULL pool in whose engine the sessions' pages take this part of the fuller pool.

    To be found again, a session needs its pages in the FULL pool, and one window in the other.
    """
    reach = layout.reaches[WINDOW]
    assert reach is not None
    needed = (traffic.num_pages, traffic.num_sessions * reach)

    def is_large_enough(num_full: int) -> bool:
        pools = default_pools(layout, num_full)
        return all(each <= occupancy * pool for each, pool in zip(needed, pools, strict=True))

    sizes = range(1, 100 * max(needed))
    return sizes[bisect.bisect_left(sizes, True, key=is_large_enough)]


def measure_hits() -> list[Figure]:
    """Hit rates of L1 beside those of an L1 that keeps the windows' layers in full."""
    layout = half_windowed(SESSION_WINDOW_TOKENS)
    full, window = layout.groups
    oracle = replace(layout, groups=(full, replace(full, layers=window.layers)))

    figures = []
    for name, traffic in TRAFFIC.items():
        for occupancy in OCCUPANCIES:
            num_full = full_pages_for(layout, traffic, occupancy)
            best = hit_rate(oracle, (num_full, num_full), traffic)
            rate = hit_rate(layout, default_pools(layout, num_full), traffic)
            figures.append(
                Figure(
                    name=f"hit rate, {name}, fuller pool {occupancy:.0%} in use",
                    value=rate,
                    unit="of prompt tokens",
                    min_value=MIN_HIT_RATE * best,
                    baseline=best,
                    baseline_name="windows kept in full",
                )
            )
    return figures


def windows_in_full(layers: Sequence[LayerSpec]) -> tuple[KvGroup, ...]:
    """Groups that keep every token of window layers, too; attention stays as it is."""
    return tuple(
        replace(group, kind=GroupKind.FULL, window=None) if group.window is not None else group
        for group in derive_kv_groups(layers)
    )


async def measure_ttft(options: Options) -> list[Figure]:
    """The first token after a hit in L2, with windows kept at checkpoints, then in full."""
    times_ms: dict[str, float] = {}
    for name, grouping in (("at checkpoints", derive_kv_groups), ("in full", windows_in_full)):
        build_model = partial(load_gpu_model, group_layers=grouping)
        sections = HIT_CONTEXTS.sections(PAGE_TOKENS)
        # Asked is what a hit takes, not whether it is predicted to be worth its load.
        sections["cache"]["load"] = "always"
        async with dummy_engine(options, HIT_MODEL, sections, build_model) as engine:
            asker = Asker(
                engine.client.generate,
                engine.stats,
                HIT_CONTEXTS,
                int(HIT_MODEL["vocab_size"]),
            )
            await asker.ask_each()
            await asker.ask_each(l2=HIT_CONTEXTS.context_tokens)
            answers: list[Answer] = []
            for _ in range(options.repeats):
                answers += await asker.ask_each(l2=HIT_CONTEXTS.context_tokens)
            times_ms[name] = median_ttft_ms(answers)
            await engine.check()

    return [
        Figure(
            name=f"TTFT, L2 hit of {HIT_CONTEXTS.context_tokens} tokens, gemma-2-9b",
            value=times_ms["at checkpoints"],
            unit="ms",
            max_value=options.bar(MAX_TTFT_RATIO * times_ms["in full"]),
            baseline=times_ms["in full"],
            baseline_name="windows kept in full",
        )
    ]


def main(options: Options) -> int:
    """Measure and report."""
    if options.device == "cuda":
        figures = asyncio.run(measure_ttft(options))
        return options.report("window_cache_gpu", {"model": "gemma-2-9b"}, figures)

    figures = [*measure_bytes(), *measure_room(), *measure_hits()]
    config = {"page_tokens": PAGE_TOKENS, "context_tokens": CONTEXT_TOKENS}
    keep_in = None if options.is_tiny else options.results
    return report("window_cache", config, figures, keep_in=keep_in, at_commit=options.commit)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__, device="cpu")))
