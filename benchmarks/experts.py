"""Measure what GPUs gain by sharing a model's experts, and what it costs.

    python -m benchmarks.experts                  # every part, each with a record of its own
    python -m benchmarks.experts --parts speed    # speed, overlap, transport, balance, whole
    python -m benchmarks.experts --ranks 4        # instead of 2
    python -m benchmarks.experts --parts balance --rebalance deepseek

speed: ranks that share experts, beside as many that each have all: decoding and long prompts.
overlap: long prompts with two micro-batches in turns, without, and as the gate decides. transport:
decoding and long prompts with rows that travel as float8, beside bfloat16 and whole models.
balance: the router prefers some experts, which are moved in full traffic; prompts before and after.
whole: a model of 48 layers, or --model; streams through all tiers, and through the SIGKILL of a
rank.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.engine.engines import (
    MOE_L12,
    MOE_TINY,
    Options,
    add_options,
    options_of,
    ray_engine,
    settle,
)
from benchmarks.model.model_shapes import SHAPES, ModelConfig, token_bytes
from benchmarks.records.command_line import count, make_parser, run, writable_folder
from benchmarks.records.record import Figure, name_with_ranks
from benchmarks.shared_experts.expert_engines import Asker, Watch, popularity_bias
from benchmarks.shared_experts.expert_figures import balancedness, beside, while_moving
from benchmarks.shared_experts.expert_loads import (
    BIASED_TINY,
    FULL_BATCHES,
    FULL_STREAMS,
    TINY_BATCHES,
    TINY_STREAMS,
    BatchLoad,
    on_ranks,
)
from benchmarks.shared_experts.expert_streams import through_a_death, through_all_tiers
from raydix.moe.dispatch.transport import Transport
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.launch import find_engine
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.cli.cache_tables import stats_tables
from raydix.runtime.config.policies import QuantizationWay, Rebalance

ENGINE = "experts"
MAX_TPOT_RATIO = {2: 0.9, 4: 0.62}
"""The bar of a token of ranks that share experts, of one of ranks that share nothing, by ranks."""
MIN_PREFILL_RATIO = {2: 0.92, 4: 0.85}
MAX_STEP_RATIO = 1.15
"""The bar of a step as clients see it, by its time on the device."""
MIN_OVERLAP_GAIN = 1.05
MIN_GATE_RATIO = 0.97
"""The least ratio with the gate closed: nothing is lost but noise."""
BALANCEDNESS = 0.6
SHORTER = 4
"""How many times as many and as short the prompts are by which balance is judged."""
MIN_BALANCE_GAIN = 1.2
MIN_LOGPROB_GAPS = {"cpu": 1e-3, "cuda": 0.1}
"""The gap between the two likeliest tokens below which rounding may decide: in float32, and in
bfloat16.
"""
PARTS = ("speed", "overlap", "transport", "balance", "whole")
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the command line says of this benchmark alone."""

    num_ranks: int = 2
    whole_model: str = "qwen3-30b-a3b"
    dispatch: str = "auto"
    rebalance: Rebalance = Rebalance.INCREMENTAL
    l3_folder: Path | None = None
    """The folder of L3; None: one of the node's shared memory, or of its disk if there is none."""


class Bench:
    """The parts. An engine that two of them measure is started once."""

    def __init__(self, options: Options, choices: Choices) -> None:
        self._options = options
        self._choices = choices
        self._num_ranks = choices.num_ranks
        self.batches = TINY_BATCHES if options.is_tiny else FULL_BATCHES
        self.streams = TINY_STREAMS if options.is_tiny else FULL_STREAMS
        self._whole_model = MOE_TINY if options.is_tiny else SHAPES[choices.whole_model]
        self._prefills: dict[str, float] = {}

    def _on_ranks(
        self, sections: Mapping[str, Any], ep: int, experts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The sections with the dispatch that the command line names."""
        experts = {"dispatch": self._choices.dispatch, **experts}
        return on_ranks(self._num_ranks, sections, ep=ep, experts=experts)

    def _asker(self, llm: AsyncLLM, load: BatchLoad, model: ModelConfig) -> Asker:
        return Asker(llm, load, int(model["vocab_size"]), self._num_ranks)

    @asynccontextmanager
    async def _batch_engine(self, name: str, ep: int, **experts: str) -> AsyncIterator[Asker]:
        """Asks an engine whose experts stay where they are."""
        model = MOE_TINY if self._options.is_tiny else MOE_L12
        # What moves no experts needs no store of them, which would take seconds to fill.
        section = {"rebalance": "none", "host_store": False, **experts}
        sections = self._on_ranks(self.batches.sections, ep, section)
        async with ray_engine(self._options, model, sections, ENGINE) as llm:
            yield self._asker(llm, self.batches, model)
            show(name, await llm.stats())

    async def speed(self) -> list[Figure]:
        """Shared experts beside whole models."""
        repeats, num_streams = self._options.repeats, self._num_ranks * self.batches.batch
        async with self._batch_engine("each has all", 1) as asker:
            alone_rate = await asker.prefill_tokens_per_s(repeats)
            alone_ms = await asker.tpot_ms(repeats)
        async with self._batch_engine("shared", self._num_ranks) as asker:
            shared_rate = await asker.prefill_tokens_per_s(repeats)
            shared_ms = await asker.tpot_ms(repeats)
            step_ratio = await asker.step_over_device()
        self._prefills["auto"] = shared_rate
        return [
            Figure(
                name="TPOT, experts shared over not",
                value=shared_ms / alone_ms,
                unit="1",
                max_value=self._options.bar(MAX_TPOT_RATIO.get(self._num_ranks)),
            ),
            Figure(
                name="step as clients see it, over its time on the device",
                value=step_ratio,
                unit="1",
                max_value=self._options.bar(MAX_STEP_RATIO),
            ),
            Figure(
                name="prefill, experts shared over not",
                value=shared_rate / alone_rate,
                unit="1",
                min_value=self._options.bar(MIN_PREFILL_RATIO.get(self._num_ranks)),
            ),
            beside("TPOT", shared_ms, alone_ms, "ms"),
            beside("decoding", 1e3 * num_streams / shared_ms, 1e3 * num_streams / alone_ms),
            beside("prefill", shared_rate, alone_rate),
        ]

    async def _prefill(self, overlap: str) -> float:
        """Prompt tokens per second of ranks that share experts, by `experts.overlap`."""
        if overlap not in self._prefills:
            async with self._batch_engine(
                f"overlap {overlap}", self._num_ranks, overlap=overlap
            ) as each:
                rate = await each.prefill_tokens_per_s(self._options.repeats)
            self._prefills[overlap] = rate
        return self._prefills[overlap]

    async def overlap(self) -> list[Figure]:
        """Micro-batches in turns. If they gain, the gate must let them; else it loses nothing."""
        off, on, gated = [await self._prefill(overlap) for overlap in ("off", "on", "auto")]
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

    async def transport(self) -> list[Figure]:
        """Rows as float8, beside rows in the model's dtype, and beside whole models."""
        repeats, rates, tpots_ms = self._options.repeats, {}, {}
        for transport in Transport:
            async with self._batch_engine(
                f"transport {transport}", self._num_ranks, transport=transport.value
            ) as asker:
                rates[transport] = await asker.prefill_tokens_per_s(repeats)
                tpots_ms[transport] = await asker.tpot_ms(repeats)
        async with self._batch_engine("each has all", 1) as asker:
            whole_rate = await asker.prefill_tokens_per_s(repeats)

        fp8, auto = Transport.FP8, Transport.AUTO
        return [
            Figure(
                name="prefill, rows as float8 over bf16", value=rates[fp8] / rates[auto], unit="1"
            ),
            Figure(
                name="prefill, rows as float8 over whole models",
                value=rates[fp8] / whole_rate,
                unit="1",
                min_value=self._options.bar(MIN_PREFILL_RATIO.get(self._num_ranks)),
            ),
            beside("prefill, rows as float8", rates[fp8], rates[auto], than="bf16"),
            beside("prefill, rows in bf16", rates[auto], whole_rate),
            beside("TPOT, rows as float8", tpots_ms[fp8], tpots_ms[auto], "ms", than="bf16"),
        ]

    async def balance(self) -> list[Figure]:
        """Popular experts are moved while all ranks decode, and while they compute prompts.

        These are short, so that experts are most of their work.
        """
        options = self._options
        batches = replace(
            self.batches,
            long_tokens=self.batches.long_tokens // SHORTER,
            long_prompts=self.batches.long_prompts * SHORTER,
        )
        model = BIASED_TINY if options.is_tiny else SHAPES["biased_moe_l12"]
        experts = {
            "rebalance": self._choices.rebalance,
            "rebalance_interval_steps": batches.rebalance_steps,
            "load_interval_steps": batches.load_interval_steps,
        }
        sections = self._on_ranks(batches.sections, self._num_ranks, experts)
        bias = popularity_bias(model, BALANCEDNESS, self._num_ranks)

        async with ray_engine(options, model, sections, ENGINE, bias) as llm:
            asker = self._asker(llm, batches, model)
            skewed = await asker.prefill_tokens_per_s(options.repeats)
            before = await llm.stats()
            show("skewed", before)
            if before["scheduler"]["expert_moves"]:
                raise RuntimeError("experts moved while prompts were measured without moves")
            async with Watch(llm) as watch:
                answers = await asker.batch(batches.moving_output_tokens)
            await settle(llm.stats)
            await asker.prefill_tokens_per_s(batches.prompt_rounds)
            balanced = await asker.prefill_tokens_per_s(options.repeats)
            after = await llm.stats()
            show("balanced", after)
        return [
            Figure(
                name="prefill, balanced over skewed",
                value=balanced / skewed,
                unit="1",
                min_value=options.bar(MIN_BALANCE_GAIN),
            ),
            beside("prefill, balanced", balanced, skewed, than="skewed"),
            *(
                beside(f"balancedness of prompts, {way}", value, former, "1", than="skewed")
                for (way, value), former in zip(
                    balancedness(after).items(), balancedness(before).values(), strict=True
                )
            ),
            *while_moving(options, answers, watch.moving()),
        ]

    async def whole(self) -> list[Figure]:
        """A whole model's streams: through all tiers, then while a rank is killed."""
        model, streams = self._whole_model, self.streams
        vocab_size = int(model["vocab_size"])
        memory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        near = self._choices.l3_folder or memory
        with TemporaryDirectory(prefix="raydix-l3-", dir=near) as folder:
            bytes_each = token_bytes(model, self._options.dtype_bytes)
            sections = streams.sections(folder, self._num_ranks, bytes_each)
            if "quantization_config" in model:
                sections["model"]["quantization"] = QuantizationWay.NATIVE.value
            sections = self._on_ranks(sections, self._num_ranks, {})
            async with ray_engine(self._options, model, sections, ENGINE) as llm:
                figures = await through_all_tiers(llm, streams, vocab_size)
                stats = await llm.stats()
                figures += [
                    Figure(name=f"balancedness, {way}", value=value, unit="1")
                    for way, value in balancedness(stats).items()
                ]
                show("all tiers", stats)
                for table in stats_tables(stats):
                    Console(stderr=True).print(table)

                handle = await asyncio.to_thread(find_engine, llm.name)
                gap = MIN_LOGPROB_GAPS[self._options.device]
                figures += await through_a_death(llm, handle, streams, vocab_size, gap)
                show("after a death", await llm.stats())
        return figures


def show(name: str, stats: Mapping[str, Any]) -> None:
    """Print what an engine counts of its experts, and what it has measured of overlap."""
    names = ("expert", "overlap", "num_halved")
    for actor, figures in stats.items():
        if isinstance(figures, Mapping):
            found = {key: figures[key] for key in figures if str(key).startswith(names)}
            if found:
                print(f"{name}, {actor}: {found}", file=sys.stderr, flush=True)


def main(options: Options, choices: Choices, parts: list[str]) -> int:
    """Measure and report, one part after the other; 1 below a bar."""
    bench = Bench(options, choices)
    config = {
        "ranks": choices.num_ranks,
        "dispatch": choices.dispatch,
        "rebalance": choices.rebalance,
        "batches": asdict(bench.batches),
        "streams": asdict(bench.streams),
    }
    works: Mapping[str, Callable[[], Coroutine[Any, Any, list[Figure]]]] = {
        "speed": bench.speed,
        "overlap": bench.overlap,
        "transport": bench.transport,
        "balance": bench.balance,
        "whole": bench.whole,
    }
    statuses = []
    for part in parts:
        figures = asyncio.run(works[part]())
        model = {"balance": "biased_moe_l12", "whole": choices.whole_model}.get(part, "moe_l12")
        name = f"experts_{part}"
        if part == "balance" and choices.rebalance is not Rebalance.INCREMENTAL:
            name += f"_{choices.rebalance}"
        if part == "whole" and choices.whole_model != Choices.whole_model:
            name += f"_{choices.whole_model}"
        name = name_with_ranks(name, choices.num_ranks)
        statuses.append(options.report(name, {"model": model, **config}, figures))
    return max(statuses)


def command() -> int:
    """Read the command line and measure."""
    command_line = make_parser(__doc__)
    add_options(command_line, Options(repeats=3))
    command_line.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    command_line.add_argument("--ranks", type=count, default=Choices.num_ranks, help="GPUs")
    command_line.add_argument("--model", choices=SHAPES, default=Choices.whole_model, help="whole")
    command_line.add_argument("--dispatch", default=Choices.dispatch, help="experts.dispatch")
    command_line.add_argument(
        "--rebalance",
        choices=[Rebalance.INCREMENTAL.value, Rebalance.DEEPSEEK.value],
        default=Choices.rebalance,
        help="balance: by which policy experts follow their load",
    )
    command_line.add_argument(
        "--l3-folder", type=writable_folder, help="whole: where L3's files are"
    )
    read = command_line.parse_args()
    options = options_of(read, read.ranks)
    chosen = Choices(
        num_ranks=read.ranks,
        whole_model=read.model,
        dispatch=read.dispatch,
        rebalance=Rebalance(read.rebalance),
        l3_folder=read.l3_folder,
    )
    # One for all engines: each would start its own.
    cluster = PrivateCluster()
    try:
        return main(options, chosen, read.parts)
    finally:
        cluster.stop()


if __name__ == "__main__":
    run(command)
