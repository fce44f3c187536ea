"""Does the first minute of an engine cost its clients anything? Starts without any kernel compiled.

    python -m benchmarks.first_minute                                       # four models, one GPU
    python -m benchmarks.first_minute --model moe_l12 --seconds 15
    python -m benchmarks.first_minute --tiny --device cpu --seconds 2

`raydix serve` runs in a process of its own, with a new folder for what Triton compiles. From the
moment that it says that it is ready clients send all kinds of requests: prompts of 1 to 5,000
tokens, new ones and continued ones, alone and in bursts of up to 130; greedy, drawn, cut,
penalised, with logprobs of outputs and prompts. The same load runs again: a later minute. What is
compared is the time to the first token of both, and what may not happen is that a kernel is
compiled. Then the engine starts again: with what the first start has compiled, and on a GPU with an
empty folder and `model.kernels`, for which `raydix warm-up` has run.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from benchmarks.engine.engines import (
    MOE_TINY,
    Options,
    Prompts,
    add_options,
    engine_name,
    engine_sections,
    options_of,
)
from benchmarks.engine.serve_process import Served, serve
from benchmarks.model.model_shapes import SHAPES, ModelConfig, write_shape
from benchmarks.records.command_line import make_parser, positive, run
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.phases import critical_path, path_text

ENGINE = engine_name("first-minute")
MODELS = ("dense_l16", "moe_l12", "gpt-oss-20b", "latent_l61")
MAX_READY_S, MAX_READY_AGAIN_S = 40.0, 20.0
MAX_RATIO = 1.5
LATE = ("kernels_compiled_serving", "kernels_found_serving")
"""The figures of a GPU actor that count what was not ready."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the clients do, and how large the tiers are."""

    seconds: float = 60.0
    num_clients: int = 24
    """The clients that ask for one answer after another."""
    burst: int = 106
    """The clients that ask at once, beside those, again and again."""
    burst_every_s: float = 5.0
    max_prompt_tokens: int = 5000
    max_output_tokens: int = 128
    continued_fraction: float = 0.25
    """The share of prompts that begin as the client's last one."""
    page_size: int = 64
    l1_tokens: int = 131_072
    l2_bytes: int = 16 << 30
    chunk_tokens: int = 8192
    max_running_requests: int = 130

    def sections(self) -> dict[str, Any]:
        """The engine's configuration but for its model."""
        return engine_sections(
            max_model_len=4 * self.max_prompt_tokens // self.page_size * self.page_size,
            page_size=self.page_size,
            l1_pages=self.l1_tokens // self.page_size,
            l2_bytes=self.l2_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=self.max_running_requests,
        )


TINY = Load(
    seconds=2.0,
    num_clients=3,
    burst=6,
    burst_every_s=1.0,
    max_prompt_tokens=100,
    max_output_tokens=6,
    page_size=16,
    l1_tokens=4096,
    l2_bytes=16 << 20,
    chunk_tokens=128,
    max_running_requests=8,
)

KINDS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=50),
    SamplingParams(temperature=1.0, min_p=0.05, presence_penalty=0.5, frequency_penalty=0.2),
    SamplingParams(temperature=0.0, repetition_penalty=1.1, logprobs=5),
    SamplingParams(temperature=0.0, prompt_logprobs=2, logit_bias={7: 2.0}),
)
"""What requests ask of sampling, in turn."""


class Clients:
    """Owns: the times to the first token of one minute's requests.

    Lengths and kinds are the same in every minute, tokens never.
    """

    def __init__(self, llm: AsyncLLM, load: Load, prompts: Prompts) -> None:
        self._llm = llm
        self._load = load
        self._prompts = prompts
        self.ttft_s: list[float] = []

    async def run(self) -> None:
        """Send requests for as long as the load says, and wait for the last answers."""
        end_s = time.monotonic() + self._load.seconds
        clients = [self._ask_on(number, end_s) for number in range(self._load.num_clients)]
        await asyncio.gather(self._burst(end_s), *clients)

    async def _ask_on(self, number: int, end_s: float) -> None:
        random = np.random.default_rng(number)
        former: list[int] = []
        asked = number
        while time.monotonic() < end_s:
            length = int(np.exp(random.uniform(0, np.log(self._load.max_prompt_tokens))))
            is_continued = random.random() < self._load.continued_fraction
            num_outputs = int(random.integers(2, self._load.max_output_tokens + 1))
            # A continued prompt grows up to twice the longest.
            kept = former if is_continued and len(former) <= self._load.max_prompt_tokens else []
            former = [*kept, *self._prompts.draw(length)]
            await self._ask(former, num_outputs, KINDS[asked % len(KINDS)])
            asked += 1

    async def _burst(self, end_s: float) -> None:
        random = np.random.default_rng(self._load.num_clients)
        while time.monotonic() < end_s:
            lengths = random.integers(1, min(256, self._load.max_prompt_tokens), self._load.burst)
            asking = [
                self._ask(self._prompts.draw(length), 8, KINDS[index % len(KINDS)])
                for index, length in enumerate(lengths.tolist())
            ]
            await asyncio.gather(*asking, asyncio.sleep(self._load.burst_every_s))

    async def _ask(self, prompt: list[int], num_tokens: int, kind: SamplingParams) -> None:
        params = replace(
            kind,
            max_tokens=num_tokens,
            ignore_eos=True,
            output_kind=OutputKind.FINAL,
            detokenize=False,
        )
        async for output in self._llm.generate(prompt, params):
            ttft_s = output.metrics.time_to_first_token_s
            assert ttft_s is not None, "a finished request has had a first token"
            self.ttft_s.append(ttft_s)


@dataclass(frozen=True, kw_only=True)
class Minutes:
    """What came of one start."""

    ready_s: float
    ttft_s: tuple[Sequence[float], ...]
    """Times to the first token in each minute."""
    late_kernels: int
    compiled_ahead: int


async def warm_up(config: Path, out: Path) -> None:
    """Run `raydix warm-up` in a process of its own, without anything that was compiled before."""
    with tempfile.TemporaryDirectory(prefix="raydix-benchmark-") as cache:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "raydix", "warm-up", str(config), "--out", str(out)),
            stdout=sys.stderr,
            env=os.environ | {"TRITON_CACHE_DIR": cache},
        )
        if await process.wait() != 0:
            raise RuntimeError("raydix warm-up has failed; what it said is above")


async def start(
    config: Path, load: Load, model: ModelConfig, kernels: Path, num_minutes: int
) -> Minutes:
    """Start an engine and load it for some minutes, or just wait until it is ready."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(kernels)}
    async with serve(config, ENGINE, environment) as served:
        await served.wait_ready()
        ready_s = time.time() - served.began_s
        tell(served, ready_s)
        llm = await AsyncLLM.connect(ENGINE)
        prompts = Prompts(int(model["vocab_size"]))
        minutes = []
        for _ in range(num_minutes):
            clients = Clients(llm, load, prompts)
            await clients.run()
            minutes.append(clients.ttft_s)
        stats = await llm.stats()
        await llm.disconnect()
        for line in served.lines:
            if "kernel" in line:
                print(" ", line, file=sys.stderr, flush=True)
    return Minutes(
        ready_s=ready_s,
        ttft_s=tuple(minutes),
        late_kernels=sum_over_ranks(stats, LATE),
        compiled_ahead=sum_over_ranks(stats, ("kernels_compiled_start",)),
    )


def sum_over_ranks(stats: Mapping[str, Any], names: Sequence[str]) -> int:
    """The sum of some figures of all GPU actors; on a CPU there are no kernels."""
    ranks = [figures for actor, figures in stats.items() if actor.startswith("gpu") and figures]
    return sum(figures.get(name, 0) for figures in ranks for name in names)


def tell(served: Served, ready_s: float) -> None:
    """Say what the start waited for."""
    path = path_text(critical_path(served.phases(served.began_s), 0.0, ready_s))
    print(f"ready after {ready_s:.1f} s:\n   ", path.replace("; ", "\n    "), file=sys.stderr)


async def measure(options: Options, name: str, load: Load) -> list[Figure]:
    """Start an engine with an empty folder for kernels, with what that left, with an artefact."""
    model = MOE_TINY if options.is_tiny else SHAPES[name]
    with tempfile.TemporaryDirectory(prefix="raydix-benchmark-") as temporary:
        folder, kernels = Path(temporary) / "model", Path(temporary) / "kernels"
        write_shape(model, folder)
        config = write_engine(Path(temporary), folder, options, load)
        first = await start(config, load, model, kernels, 2)
        again = await start(config, load, model, kernels, 0)
        carried = None
        if options.device == "cuda":
            artefact = Path(temporary) / "artefact"
            await warm_up(config, artefact)
            config = write_engine(Path(temporary), folder, options, load, artefact)
            carried = await start(config, load, model, Path(temporary) / "empty", 0)
    return figures_of(options, name, first, again, carried)


def write_engine(
    folder: Path, model: Path, options: Options, load: Load, artefact: Path | None = None
) -> Path:
    """Write the engine's configuration file."""
    sections = load.sections()
    if artefact is not None:
        sections["model"]["kernels"] = str(artefact)
    sections["model"] |= {
        "path": str(model),
        "load_format": "dummy",
        "device": options.device,
    }
    path = folder / "engine.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def figures_of(
    options: Options, name: str, first: Minutes, again: Minutes, carried: Minutes | None
) -> list[Figure]:
    """The figures of one model. `carried`: of a start with an artefact."""
    of_carried = []
    if carried is not None:
        of_carried = [
            Figure(
                name=f"command to ready, an artefact of kernels, {name}",
                value=carried.ready_s,
                unit="s",
                max_value=options.bar(MAX_READY_AGAIN_S),
            ),
            Figure(
                name=f"kernels compiled beside an artefact, {name}",
                value=carried.compiled_ahead,
                unit="1",
                max_value=options.bar(0),
            ),
        ]
    one, two = ([1e3 * each for each in minute] for minute in first.ttft_s)
    p99_one, p99_two = (float(np.percentile(minute, 99)) for minute in (one, two))
    return [
        Figure(
            name=f"kernels compiled or found after ready, {name}",
            value=first.late_kernels,
            unit="1",
            max_value=options.bar(0),
        ),
        Figure(
            name=f"TTFT p99 of the first minute over that of the second, {name}",
            value=p99_one / p99_two,
            unit="1",
            max_value=options.bar(MAX_RATIO),
        ),
        Figure(name=f"TTFT p99, first minute, {name}", value=p99_one, unit="ms"),
        Figure(name=f"TTFT p99, second minute, {name}", value=p99_two, unit="ms"),
        Figure(name=f"TTFT p50, first minute, {name}", value=median(one), unit="ms"),
        Figure(name=f"TTFT p50, second minute, {name}", value=median(two), unit="ms"),
        Figure(name=f"TTFT, longest of the first minute, {name}", value=max(one), unit="ms"),
        Figure(name=f"TTFT, longest of the second minute, {name}", value=max(two), unit="ms"),
        Figure(name=f"requests, first minute, {name}", value=len(one), unit="1"),
        Figure(name=f"requests, second minute, {name}", value=len(two), unit="1"),
        Figure(name=f"kernels compiled ahead, {name}", value=first.compiled_ahead, unit="1"),
        Figure(
            name=f"command to ready, no kernels there, {name}",
            value=first.ready_s,
            unit="s",
            max_value=options.bar(MAX_READY_S),
        ),
        Figure(
            name=f"command to ready, kernels there, {name}",
            value=again.ready_s,
            unit="s",
            max_value=options.bar(MAX_READY_AGAIN_S),
        ),
        *of_carried,
    ]


def main(options: Options, models: Sequence[str], load: Load) -> int:
    """Measure and report."""
    figures = []
    for name in models:
        figures += asyncio.run(measure(options, name, load))
    return options.report("first_minute", {"model": ", ".join(models), **asdict(load)}, figures)


def command() -> int:
    """Read the command line and measure."""
    command_line = make_parser(__doc__)
    add_options(command_line, Options())
    command_line.add_argument("--model", nargs="+", choices=sorted(SHAPES), default=list(MODELS))
    command_line.add_argument("--seconds", type=positive, help="length of each minute")
    read = command_line.parse_args()
    options = options_of(read)
    load = TINY if options.is_tiny else Load()
    if read.seconds is not None:
        load = replace(load, seconds=read.seconds)
    return main(options, read.model[:1] if options.is_tiny else read.model, load)


if __name__ == "__main__":
    run(command)
