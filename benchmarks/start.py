"""Measure starts: from the command to the first token, and what clients see of a killed GPU actor.

    python -m benchmarks.start                    # dense_l16 and moe_l12, one GPU
    python -m benchmarks.start --model dense_l16 --repeats 1
    python -m benchmarks.start --tiny --device cpu

The command is `raydix serve`, in a process of its own; this one connects and asks for a token once
the engine is ready. moe_l12 reads real safetensors from the page cache, dense_l16 draws its
weights. The first start of a model, which may compile kernels, is a figure of its own without a
bar. After the last start of dense_l16 the only GPU actor is killed under streams.

Every phase goes to stderr with its seconds, and the critical path: who waited for whom.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    GREEDY,
    MOE_L12,
    MOE_TINY,
    Options,
    Prompts,
    add_options,
    ask,
    engine_name,
    engine_sections,
    options_of,
)
from benchmarks.engine.serve_process import Served, serve
from benchmarks.model.checkpoint_files import write_checkpoint
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import make_parser, run
from benchmarks.records.record import Figure
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import find_record
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import OutputKind
from raydix.runtime.phases import Phase, critical_path, path_text

ENGINE = engine_name("start")


@dataclass(frozen=True, kw_only=True)
class Load:
    """How large the tiers are, and what is asked."""

    page_size: int = 64
    l1_tokens: int = 131_072
    l2_bytes: int = 32 << 30
    max_model_len: int = 16_384
    chunk_tokens: int = 8192
    num_streams: int = 16
    prompt_tokens: int = 1024
    settle_s: float = 12.0
    """The time from the first token until streams begin: what goes on beside a start has ended by
    then.
    """
    tokens_before: int = 64
    """The tokens that each stream has received when the GPU actor is killed, and again before it
    ends.
    """
    num_first_starts: int = 1
    """The number of starts that may compile kernels, and so have a figure of their own."""

    def sections(self) -> dict[str, Any]:
        """The engine's configuration but for its model."""
        return engine_sections(
            max_model_len=self.max_model_len,
            page_size=self.page_size,
            l1_pages=self.l1_tokens // self.page_size,
            l2_bytes=self.l2_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=64,
        )


TINY = Load(
    page_size=16,
    l1_tokens=2048,
    l2_bytes=16 << 20,
    max_model_len=512,
    chunk_tokens=128,
    num_streams=3,
    prompt_tokens=32,
    settle_s=0.0,
    tokens_before=8,
    num_first_starts=0,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that is started."""

    name: str
    model: ModelConfig
    tiny: ModelConfig
    has_files: bool
    """Its weights are read from safetensors; else they are drawn."""
    max_first_token_s: float
    is_killed: bool


CASES = (
    Case(
        name="dense_l16",
        model=DENSE_L16,
        tiny=DENSE_TINY,
        has_files=False,
        max_first_token_s=20.0,
        is_killed=True,
    ),
    Case(
        name="moe_l12",
        model=MOE_L12,
        tiny=MOE_TINY,
        has_files=True,
        max_first_token_s=30.0,
        is_killed=False,
    ),
)
MIN_READ_BYTES_PER_S = 5e9
MAX_GAP_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start, in seconds since the command."""

    first_token_s: float
    phases: tuple[Phase, ...]


@dataclass(frozen=True, kw_only=True)
class Death:
    """What came of a killed GPU actor."""

    gap_s: float
    """The longest between two tokens of a stream."""
    phases: tuple[Phase, ...]
    """The phases of the next incarnation, in seconds since the kill."""


async def first_token(load: Load, prompts: Prompts) -> AsyncLLM:
    """A client of the engine, once it has received a token."""
    llm = await AsyncLLM.connect(ENGINE)
    await ask(llm.generate, prompts.draw(load.prompt_tokens), 1, OutputKind.FINAL)
    return llm


async def kill_under_streams(llm: AsyncLLM, served: Served, load: Load, prompts: Prompts) -> Death:
    """Kill the only GPU actor once all streams run, and wait until all go on."""
    arrivals: list[list[float]] = [[] for _ in range(load.num_streams)]
    killed_s: list[float] = []
    running = asyncio.Barrier(load.num_streams + 1)
    params = replace(
        GREEDY,
        max_tokens=load.max_model_len - load.prompt_tokens,
        ignore_eos=True,
        output_kind=OutputKind.DELTA,
        detokenize=False,
    )

    async def stream(own: list[float]) -> None:
        outputs = llm.generate(prompts.draw(load.prompt_tokens), params)
        num_after = 0
        async with contextlib.aclosing(outputs):
            async for _ in outputs:
                own.append(time.time())
                if len(own) == load.tokens_before:
                    await running.wait()
                num_after += bool(killed_s) and own[-1] > killed_s[0]
                if num_after == load.tokens_before:
                    return

    async def kill() -> None:
        await running.wait()
        record = find_record(ENGINE)
        assert record is not None, "the engine runs on this host"
        health = await call_supervisor(ENGINE, record, "health")
        killed_s.append(time.time())
        os.kill(health["gpu0"]["pid"], signal.SIGKILL)

    await asyncio.gather(kill(), *map(stream, arrivals))
    gap_s = max(later - before for own in arrivals for before, later in itertools.pairwise(own))
    return Death(gap_s=gap_s, phases=served.phases(killed_s[0]))


async def start(
    config: Path, load: Load, prompts: Prompts, *, is_killed: bool
) -> tuple[Start, Death | None]:
    """Start an engine until its first token; then kill its GPU actor, if asked, and stop it."""
    async with serve(config, ENGINE) as served:
        await served.wait_ready()
        llm = await first_token(load, prompts)
        started = Start(
            first_token_s=time.time() - served.began_s, phases=served.phases(served.began_s)
        )
        death = None
        if is_killed:
            await asyncio.sleep(load.settle_s)
            death = await kill_under_streams(llm, served, load, prompts)
        await llm.disconnect()
    for line in served.asides:
        print(" ", line, file=sys.stderr)
    return started, death


def tell(what: str, phases: Sequence[Phase], ended_s: float) -> None:
    """Say when each phase began and ended, and what was waited for."""
    print(f"{what}: {ended_s:.2f} s", file=sys.stderr)
    for each in phases:
        times = f"{each.began_s:8.2f} {each.ended_s:8.2f} {each.ended_s - each.began_s:8.2f}"
        print(f"{times}  {each.actor:<12}{each.what}", file=sys.stderr)
    path = path_text(critical_path(phases, 0.0, ended_s))
    print("  critical path:", path.replace("; ", "\n    "), file=sys.stderr, flush=True)


async def measure(options: Options, case: Case, load: Load) -> list[Figure]:
    """Starts of one model, each in processes of its own."""
    model = case.tiny if options.is_tiny else case.model
    prompts = Prompts(int(model["vocab_size"]))
    starts: list[Start] = []
    death: Death | None = None
    with TemporaryDirectory(prefix="raydix-benchmark-") as temporary:
        folder = Path(temporary)
        num_bytes = write_model(folder, options, case)
        config = write_engine(folder, options, case, load)
        num_starts = load.num_first_starts + options.repeats
        for number in range(num_starts):
            is_last = number == num_starts - 1
            started, death = await start(
                config, load, prompts, is_killed=case.is_killed and is_last
            )
            tell(f"{case.name}, start {number}", started.phases, started.first_token_s)
            starts.append(started)
    if death is not None:
        tell(f"{case.name}, GPU actor killed", death.phases, death.gap_s)

    measured = figures_of(options, case, num_bytes, starts[load.num_first_starts :], death)
    return measured + [
        Figure(name=f"first start, {case.name}", value=first.first_token_s, unit="s")
        for first in starts[: load.num_first_starts]
    ]


def write_model(folder: Path, options: Options, case: Case) -> int:
    """Put what `model.path` needs into a folder. Returns the bytes of its weights' files."""
    model = case.tiny if options.is_tiny else case.model
    if case.has_files:
        return write_checkpoint(folder, model, options.device)
    (folder / "config.json").write_text(json.dumps(dict(model)))
    return 0


def write_engine(folder: Path, options: Options, case: Case, load: Load) -> Path:
    """Write the engine's configuration file."""
    sections = load.sections()
    sections["model"] |= {
        "path": str(folder),
        "load_format": "auto" if case.has_files else "dummy",
        "device": options.device,
    }
    path = folder / "engine.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def figures_of(
    options: Options, case: Case, num_bytes: int, starts: Sequence[Start], death: Death | None
) -> list[Figure]:
    """Medians of these starts, and what came of a killed GPU actor."""
    figures = [
        Figure(
            name=f"first token, {case.name}",
            value=median(each.first_token_s for each in starts),
            unit="s",
            max_value=options.bar(case.max_first_token_s),
        ),
    ]
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for each in (phase for start in starts for phase in start.phases):
        seconds[f"{each.actor}: {each.what}, {case.name}"].append(each.ended_s - each.began_s)
    figures += [Figure(name=name, value=median(s), unit="s") for name, s in seconds.items()]

    if num_bytes:
        read_s = median(seconds[f"gpu0: weights read, {case.name}"])
        figures.append(
            Figure(
                name=f"weights read, {case.name}",
                value=num_bytes / read_s / 1e9,
                unit="GB/s",
                min_value=options.bar(MIN_READ_BYTES_PER_S / 1e9),
            )
        )
    if death is not None:
        figures.append(
            Figure(
                name=f"longest gap, GPU actor killed, {case.name}",
                value=death.gap_s,
                unit="s",
                max_value=options.bar(MAX_GAP_S),
            )
        )
    return figures


def main(options: Options, models: Sequence[str]) -> int:
    """Measure and report."""
    load = TINY if options.is_tiny else Load()
    figures = []
    for case in CASES:
        if case.name in models:
            figures += asyncio.run(measure(options, case, load))
    return options.report("start", {"model": ", ".join(models), **asdict(load)}, figures)


def command() -> int:
    """Read the command line and measure."""
    command_line = make_parser(__doc__)
    add_options(command_line, Options())
    names = [case.name for case in CASES]
    command_line.add_argument("--model", nargs="+", choices=names, default=names)
    read = command_line.parse_args()
    return main(options_of(read), read.model)


if __name__ == "__main__":
    run(command)
