"""Measure what two GPUs gain by sharing a model's experts, and what it costs.

    python -m benchmarks.experts                  # every part, each with a record of its own
    python -m benchmarks.experts --parts speed    # speed, overlap, balance, whole

speed: two ranks that share experts, beside two that each have all: decoding and long prompts.
overlap: long prompts with two micro-batches in turns, without, and as the gate decides. balance:
the router prefers some experts, which are moved in full traffic; prompts before and after. whole: a
model of 48 layers; streams through all tiers, and through the SIGKILL of a rank.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.command_line import make_parser
from benchmarks.engines import (
    MOE_L12,
    MOE_TINY,
    Answer,
    Options,
    add_options,
    options_of,
    settle,
)
from benchmarks.expert_engines import Asker, Watch, expert_engine, popularity_bias, steps_of
from benchmarks.expert_loads import (
    BIASED_TINY,
    FULL_BATCHES,
    FULL_STREAMS,
    NUM_RANKS,
    TINY_BATCHES,
    TINY_STREAMS,
    on_two_ranks,
)
from benchmarks.expert_streams import through_a_death, through_all_tiers
from benchmarks.model_shapes import SHAPES
from benchmarks.record import Figure
from raydix.runtime.actors.bootstrap.launch import find_engine
from raydix.runtime.cli.cache_tables import stats_tables

MAX_TPOT_RATIO = 0.9
MIN_OVERLAP_GAIN = 1.05
MIN_GATE_RATIO = 0.97
"""With the gate closed nothing is lost but noise."""
BALANCEDNESS = 0.6
MIN_BALANCE_GAIN = 1.2
MAX_P99_RATIO = 1.1
MAX_GAP_RATIO = 1.5
"""The longest step while experts move, by the p99 of the others."""
MIN_LOGPROB_GAPS = {"cpu": 1e-3, "cuda": 0.1}
"""Of the two likeliest tokens, below which rounding may decide: in float32, and in bfloat16."""
PARTS = ("speed", "overlap", "balance", "whole")
_SHARED_MEMORY = Path("/dev/shm")


class Bench:
    """The parts. An engine that two of them measure is started once."""

    def __init__(self, options: Options, whole_model: str) -> None:
        self._options = options
        self.batches = TINY_BATCHES if options.is_tiny else FULL_BATCHES
        self.streams = TINY_STREAMS if options.is_tiny else FULL_STREAMS
        self._whole_model = MOE_TINY if options.is_tiny else SHAPES[whole_model]
        self._speeds: dict[str, tuple[float, float]] = {}

    async def _speed(self, name: str, ep: int, **experts: str) -> tuple[float, float]:
        """Of two ranks: time per token in ms, and prompt tokens per second."""
        if name not in self._speeds:
            options = self._options
            model = MOE_TINY if options.is_tiny else MOE_L12
            experts = {"rebalance": "off", **experts}
            sections = on_two_ranks(self.batches.sections, ep=ep, experts=experts)
            async with expert_engine(options, model, sections) as llm:
                asker = Asker(llm, self.batches, int(model["vocab_size"]))
                prefill = await asker.prefill_tokens_per_s(options.repeats)
                self._speeds[name] = await asker.tpot_ms(options.repeats), prefill
                show(name, await llm.stats())
        return self._speeds[name]

    async def speed(self) -> list[Figure]:
        """Shared experts beside whole models."""
        alone_ms, alone_rate = await self._speed("each has all", 1)
        shared_ms, shared_rate = await self._speed("shared", NUM_RANKS)
        num_streams = NUM_RANKS * self.batches.batch
        return [
            Figure(
                name="TPOT, experts shared over not",
                value=shared_ms / alone_ms,
                unit="1",
                max_value=self._options.bar(MAX_TPOT_RATIO),
            ),
            beside("TPOT", shared_ms, alone_ms, "ms"),
            beside("decoding", 1e3 * num_streams / shared_ms, 1e3 * num_streams / alone_ms),
            beside("prefill", shared_rate, alone_rate),
        ]

    async def overlap(self) -> list[Figure]:
        """Micro-batches in turns. If they gain, the gate must let them; else it loses nothing."""
        _, off = await self._speed("overlap off", NUM_RANKS, overlap="off")
        _, on = await self._speed("overlap on", NUM_RANKS, overlap="on")
        _, gated = await self._speed("shared", NUM_RANKS)
        has_gain = on / off >= MIN_OVERLAP_GAIN
        return [
            Figure(name="prefill, overlap on over off", value=on / off, unit="1"),
            Figure(
                name="prefill, overlap as its gate decides over off",
                value=gated / off,
                unit="1",
                min_value=self._options.bar(MIN_OVERLAP_GAIN if has_gain else MIN_GATE_RATIO),
            ),
            beside("prefill, overlap on", on, off, than="off"),
            beside("prefill, overlap as its gate decides", gated, off, than="off"),
        ]

    async def balance(self) -> list[Figure]:
        """Popular experts are moved while both ranks decode."""
        options, batches = self._options, self.batches
        model = BIASED_TINY if options.is_tiny else SHAPES["biased_moe_l12"]
        experts = {
            "rebalance": "incremental",
            "rebalance_interval_steps": batches.rebalance_steps,
            "load_interval_steps": max(1, batches.rebalance_steps // 16),
        }
        sections = on_two_ranks(batches.sections, ep=NUM_RANKS, experts=experts)
        bias = popularity_bias(model, BALANCEDNESS)

        async with expert_engine(options, model, sections, bias) as llm:
            asker = Asker(llm, batches, int(model["vocab_size"]))
            skewed = await asker.prefill_tokens_per_s(options.repeats)
            show("skewed", await llm.stats())
            async with Watch(llm) as watch:
                answers = await asker.batch(batches.moving_output_tokens)
            await settle(llm.stats)
            balanced = await asker.prefill_tokens_per_s(options.repeats)
            show("balanced", await llm.stats())
        return [
            Figure(
                name="prefill, balanced over skewed",
                value=balanced / skewed,
                unit="1",
                min_value=options.bar(MIN_BALANCE_GAIN),
            ),
            beside("prefill, balanced", balanced, skewed, than="skewed"),
            *while_moving(options, answers, watch.moving()),
        ]

    async def whole(self) -> list[Figure]:
        """A whole model's streams: through all tiers, then while a rank is killed."""
        model, streams = self._whole_model, self.streams
        vocab_size = int(model["vocab_size"])
        memory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        with TemporaryDirectory(prefix="raydix-l3-", dir=memory) as folder:
            sections = on_two_ranks(streams.sections(folder), ep=NUM_RANKS, experts={})
            async with expert_engine(self._options, model, sections) as llm:
                figures = await through_all_tiers(llm, streams, vocab_size)
                stats = await llm.stats()
                show("all tiers", stats)
                for table in stats_tables(stats):
                    Console(stderr=True).print(table)

                handle = await asyncio.to_thread(find_engine, llm.name)
                gap = MIN_LOGPROB_GAPS[self._options.device]
                figures += await through_a_death(llm, handle, streams, vocab_size, gap)
                show("after a death", await llm.stats())
        return figures


def while_moving(
    options: Options, answers: list[Answer], moving: list[tuple[float, float]]
) -> list[Figure]:
    """Steps beside which experts moved, and all others."""
    moved, others = [], []
    for start_s, end_s in steps_of(answers):
        is_beside = any(began < end_s and start_s < ended for began, ended in moving)
        (moved if is_beside else others).append(end_s - start_s)
    if len(moved) < 2 or len(others) < 2:
        raise RuntimeError(
            f"experts moved beside {len(moved)} steps and not beside {len(others)}; generate more "
            "tokens"
        )

    p99_s, other_p99_s = (float(np.quantile(each, 0.99)) for each in (moved, others))
    return [
        Figure(
            name="p99 of steps, experts moving over not",
            value=p99_s / other_p99_s,
            unit="1",
            max_value=options.bar(MAX_P99_RATIO),
        ),
        Figure(
            name="longest step while experts move over the others' p99",
            value=max(moved) / other_p99_s,
            unit="1",
            max_value=options.bar(MAX_GAP_RATIO),
        ),
        beside("p99 of steps, experts moving", 1e3 * p99_s, 1e3 * other_p99_s, "ms", than="not"),
        beside("longest step, experts moving", 1e3 * max(moved), 1e3 * max(others), "ms", "not"),
        Figure(name="steps beside moves", value=len(moved), unit="1"),
    ]


def beside(
    name: str, value: float, baseline: float, unit: str = "tokens/s", than: str = "not shared"
) -> Figure:
    """A figure and what it is compared with."""
    return Figure(name=name, value=value, unit=unit, baseline=baseline, baseline_name=than)


def show(name: str, stats: Mapping[str, Any]) -> None:
    """Print what an engine counts of its experts, and what it has measured of two halves."""
    names = ("expert", "overlap", "num_halved")
    for actor, figures in stats.items():
        if isinstance(figures, Mapping):
            found = {key: figures[key] for key in figures if str(key).startswith(names)}
            if found:
                print(f"{name}, {actor}: {found}", file=sys.stderr, flush=True)


def main(options: Options, whole_model: str, parts: list[str]) -> int:
    """Measure and report, one part after the other; 1 below a bar."""
    bench = Bench(options, whole_model)
    config = {"batches": asdict(bench.batches), "streams": asdict(bench.streams)}
    works: Mapping[str, Callable[[], Coroutine[Any, Any, list[Figure]]]] = {
        "speed": bench.speed,
        "overlap": bench.overlap,
        "balance": bench.balance,
        "whole": bench.whole,
    }
    statuses = []
    for part in parts:
        figures = asyncio.run(works[part]())
        model = {"balance": "biased_moe_l12", "whole": whole_model}.get(part, "moe_l12")
        statuses.append(options.report(f"experts_{part}", {"model": model, **config}, figures))
    return max(statuses)


if __name__ == "__main__":
    command_line = make_parser(__doc__)
    add_options(command_line, Options(repeats=3))
    command_line.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    command_line.add_argument("--model", choices=SHAPES, default="qwen3-30b-a3b", help="whole")
    read = command_line.parse_args()
    sys.exit(main(options_of(read), read.model, read.parts))
