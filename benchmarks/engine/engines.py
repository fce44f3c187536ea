"""What the end-to-end benchmarks share: models, engines, and requests with a stopwatch."""

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.device.gpus import require_gpus
from benchmarks.model.model_shapes import SHAPES, ModelConfig
from benchmarks.records.command_line import add_commit, add_results, count, make_parser
from benchmarks.records.record import RESULTS, Figure, report
from raydix.runtime.actors.gpu_model import BuildModel
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.checkpoint.dummy import FIXED
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine

Generate = Callable[[list[int], SamplingParams], AsyncGenerator[RequestOutput, None]]
"""`generate` of any client."""
Stats = Callable[[], Awaitable[Mapping[str, Any]]]
"""`stats` of any engine."""

DENSE_L16: ModelConfig = SHAPES["dense_l16"]
MOE_L12: ModelConfig = SHAPES["moe_l12"]
QWEN3_32B_L16: ModelConfig = SHAPES["qwen3_32b_l16"]
_TINY: ModelConfig = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
DENSE_TINY: ModelConfig = {**DENSE_L16, **_TINY}
MOE_TINY: ModelConfig = {
    **MOE_L12,
    **_TINY,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}

_POLL_S = 0.01
_BUSY_SCHEDULER = ("num_requests_running", "transfers_in_flight", "dirty_pages", "leases_wanted")
_BUSY_HOST = ("lookups", "leases", "pages_quarantined")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says. A tiny run only shows that a benchmark works: it has no bars."""

    device: str = "cuda"
    is_tiny: bool = False
    repeats: int = 5
    results: Path = RESULTS
    commit: str | None = None

    @property
    def dtype_bytes(self) -> int:
        """The bytes of a number that a model computes: bfloat16 on a GPU, float32 elsewhere."""
        return 2 if self.device == "cuda" else 4

    def bar(self, value: float | None) -> float | None:
        """The bar, where it applies."""
        return None if self.is_tiny else value

    def report(self, benchmark: str, config: Mapping[str, object], figures: list[Figure]) -> int:
        """Print and keep the record; the exit status."""
        is_cuda = self.device == "cuda"
        device = torch.cuda.get_device_name() if is_cuda else "cpu"
        config = {
            "device": device,
            "dtype": "bfloat16" if is_cuda else "float32",
            "repeats": self.repeats,
            **config,
        }
        if self.is_tiny:
            config["model"] = "tiny"
        keep_in = None if self.is_tiny else self.results
        return report(benchmark, config, figures, keep_in=keep_in, at_commit=self.commit)


def parse_options(description: str | None, device: str = "cuda", num_gpus: int = 1) -> Options:
    """Read the command line that all end-to-end benchmarks have. `device`: if it names none."""
    parser = make_parser(description)
    add_options(parser, Options(device=device))
    return options_of(parser.parse_args(), num_gpus)


def parse_options_of_two(description: str | None) -> tuple[Options, int]:
    """The same of two engines side by side, and how many GPUs both have together, half each."""
    parser = make_parser(description)
    add_options(parser, Options())
    parser.add_argument("--ranks", type=count, default=2, help="GPUs of both engines together")
    read = parser.parse_args()
    if read.ranks % 2:
        parser.error(f"--ranks is {read.ranks}; two engines need an even number")
    return options_of(read, read.ranks), read.ranks


def add_options(parser: argparse.ArgumentParser, defaults: Options) -> None:
    """What all end-to-end benchmarks have on their command line."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default=defaults.device)
    parser.add_argument("--tiny", action="store_true", help="small shapes, no bars, no record")
    parser.add_argument("--repeats", type=count, default=defaults.repeats)
    add_results(parser, help="folder for the record")
    add_commit(parser)


def options_of(arguments: argparse.Namespace, num_gpus: int = 1) -> Options:
    """What the command line says. Raises ConfigError without the GPUs that it asks for."""
    if arguments.device == "cuda":
        require_gpus(num_gpus, "--device cpu --tiny tries it without.")
    return Options(
        device=arguments.device,
        is_tiny=arguments.tiny,
        repeats=arguments.repeats,
        results=arguments.results,
        commit=arguments.commit,
    )


def engine_sections(
    *,
    max_model_len: int,
    page_size: int,
    l1_pages: int,
    l2_bytes: int | None,
    chunk_tokens: int,
    max_running_requests: int | None = None,
) -> dict[str, Any]:
    """The sections of an engine's configuration that most benchmarks set; None: the default."""
    scheduler = {"chunked_prefill_tokens": chunk_tokens}
    if max_running_requests is not None:
        scheduler["max_running_requests"] = max_running_requests

    return {
        "model": {"max_model_len": max_model_len},
        "cache": {
            "page_size": page_size,
            "l1": {"num_pages": l1_pages},
            # Whatever engine was measured before leaves nothing to the next.
            "l2": None if l2_bytes is None else {"bytes_per_node": l2_bytes, "shared": False},
        },
        "scheduler": scheduler,
    }


@asynccontextmanager
async def dummy_config(
    options: Options,
    model: ModelConfig,
    sections: Mapping[str, Any],
    fixed: Mapping[str, Tensor] | None = None,
) -> AsyncIterator[EngineConfig]:
    """The configuration of an engine with random weights for `model`, for the `with` block.

    fixed: tensors that are not drawn, by the decoder's names.
    """
    with TemporaryDirectory(prefix="raydix-benchmark-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(model)))
        if fixed:
            save_file({name: each.clone() for name, each in fixed.items()}, Path(folder) / FIXED)
        yield load_config(
            {"model": {"path": folder, "load_format": "dummy", "device": options.device}}, sections
        )


@asynccontextmanager
async def dummy_engine(
    options: Options,
    model: ModelConfig,
    sections: Mapping[str, Any],
    build_model: BuildModel = build_torch_model,
) -> AsyncIterator[InProcessEngine]:
    """An engine in this process with random weights for `model`."""
    async with (
        dummy_config(options, model, sections) as config,
        in_process_engine(config, build_model) as engine,
    ):
        yield engine


def engine_name(benchmark: str) -> str:
    """An engine's name that no other process uses: a benchmark may run twice at the same time."""
    return f"{benchmark}-{os.getpid()}"


@asynccontextmanager
async def ray_engine(
    options: Options,
    model: ModelConfig,
    sections: Mapping[str, Any],
    benchmark: str,
    fixed: Mapping[str, Tensor] | None = None,
) -> AsyncIterator[AsyncLLM]:
    """An engine of actors with random weights for `model`, as users have it.

    fixed: as for `dummy_config`.
    """
    async with (
        dummy_config(options, model, sections, fixed) as config,
        await AsyncLLM.start(config, name=engine_name(benchmark)) as llm,
    ):
        yield llm


class Prompts:
    """Random token ids, the same in every run."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(0)

    def draw(self, num_tokens: int) -> list[int]:
        """Tokens that no earlier draw had."""
        drawn: NDArray[np.int64] = self._random.integers(self._vocab_size, size=num_tokens)
        return drawn.tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request as its client saw it. Times are `time.monotonic()`."""

    sent_s: float
    first_s: float
    """When the first token came, also if it was not yielded by itself."""
    ended_s: float
    arrivals_s: tuple[float, ...]
    """When each output was yielded: one per token of a stream that is read in time."""
    num_tokens: int
    tokens_by_source: dict[str, int]

    @property
    def ttft_ms(self) -> float:
        """Time to the first token, from the call of `generate`."""
        return 1e3 * (self.first_s - self.sent_s)

    @property
    def tpot_ms(self) -> float:
        """Mean time per output token after the first."""
        return 1e3 * (self.ended_s - self.first_s) / (self.num_tokens - 1)


GREEDY = SamplingParams(temperature=0.0)


async def ask(
    generate: Generate,
    prompt: list[int],
    num_tokens: int,
    output_kind: OutputKind = OutputKind.DELTA,
    sampling: SamplingParams = GREEDY,
) -> Answer:
    """Generate exactly `num_tokens`, drawn as `sampling` says; fewer if a form ends before."""
    params = replace(
        sampling,
        max_tokens=num_tokens,
        ignore_eos=sampling.structured_outputs is None,
        output_kind=output_kind,
        detokenize=False,
    )

    sent_s = time.monotonic()
    arrivals_s: list[float] = []
    num_received = 0
    output: RequestOutput | None = None
    async for output in generate(prompt, params):
        arrivals_s.append(time.monotonic())
        num_received += len(output.outputs[0].token_ids)

    assert output is not None, "a stream ends with a finished output"
    ttft_s = output.metrics.time_to_first_token_s
    assert ttft_s is not None, "a finished request has had a first token"
    return Answer(
        sent_s=sent_s,
        first_s=arrivals_s[0] if output_kind is OutputKind.DELTA else sent_s + ttft_s,
        ended_s=arrivals_s[-1],
        arrivals_s=tuple(arrivals_s),
        num_tokens=num_received,
        tokens_by_source={
            source: count
            for source, count in output.metrics.cached_tokens_by_source.items()
            if count
        },
    )


async def ask_batch(
    generate: Generate,
    prompts: list[list[int]],
    num_tokens: int,
    sampling: SamplingParams = GREEDY,
) -> list[Answer]:
    """Ask all at once."""
    # Only the first is streamed token by token, so that reading costs the engine's process little.
    kinds = [OutputKind.DELTA] + [OutputKind.FINAL] * (len(prompts) - 1)
    asking = [
        ask(generate, prompt, num_tokens, kind, sampling)
        for prompt, kind in zip(prompts, kinds, strict=True)
    ]
    return list(await asyncio.gather(*asking))


async def settle(stats: Stats) -> None:
    """Return once no request and no copy is left in an engine whose `stats` these are."""
    while True:
        figures = await stats()
        busy = [figures["scheduler"][name] for name in _BUSY_SCHEDULER]
        if "host" in figures:
            busy += [figures["host"][name] for name in _BUSY_HOST]
        if not any(busy):
            return
        await asyncio.sleep(_POLL_S)


def expect_sources(answer: Answer, **cached_tokens: int) -> None:
    """Raise RuntimeError unless exactly these tokens came from the tiers."""
    # Otherwise another state would be measured than is meant.
    cached = {
        source: n
        for source, n in answer.tokens_by_source.items()
        if not source.startswith("computed:")
    }
    if cached != cached_tokens:
        raise RuntimeError(
            f"the prompt came from {answer.tokens_by_source}; expected {cached_tokens} from the "
            "tiers"
        )


def steady_tpot_ms(answers: list[Answer]) -> float:
    """Time between two tokens of the first stream while every request generates."""
    start_s = max(answer.first_s for answer in answers)
    stop_s = min(answer.ended_s for answer in answers)
    arrivals_s = [
        arrival_s for arrival_s in answers[0].arrivals_s if start_s <= arrival_s <= stop_s
    ]
    if len(arrivals_s) < 2:
        raise RuntimeError("the requests did not generate at the same time; measure longer outputs")
    return 1e3 * (arrivals_s[-1] - arrivals_s[0]) / (len(arrivals_s) - 1)


def median_ttft_ms(answers: list[Answer]) -> float:
    """Median time to the first token of several requests."""
    return median(answer.ttft_ms for answer in answers)
