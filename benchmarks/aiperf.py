"""Replay a trace against the HTTP server with AIPerf, and with a client of our own.

    python -m benchmarks.aiperf

AIPerf (PyPI) measures from an environment of its own, which is made if it is not there. Both
clients send the same requests: those of the conversation trace, with all lengths divided by
`--divisor`. They do so beside each other, so that whatever else the machine does slows both, and
share no cached page. No request may fail, and the two must agree about the median time to the first
text.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import math
import os
import subprocess
import sys
import time
import venv
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Options,
    add_options,
    engine_name,
    engine_sections,
    options_of,
    settle,
)
from benchmarks.http.client import stream_parts
from benchmarks.http.reader import EVENT
from benchmarks.http_overhead import http_front
from benchmarks.records.command_line import count, make_parser, positive, run, writable_folder
from benchmarks.records.record import REPOSITORY, Figure
from raydix.errors import ConfigError
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.config.loading import load_config

ENGINE = engine_name("aiperf")
AIPERF = "aiperf==0.13.0"
MAX_DIFFERENCE = 0.05
"""The largest difference between the two medians, as a part of the smaller one."""
_TRACE = REPOSITORY / "benchmarks" / "traces" / "conversation.jsonl.gz"
_ENVIRONMENT = REPOSITORY / ".venv" / "aiperf"
_BLOCK_TOKENS = 512
_ARRIVALS_S = 3.0
"""The trace tells arrivals in steps of so many seconds, over which they are spread here."""
_POLL_S = 0.005
_TOKENIZER = "raydix/bytes"
_REVISION = "0" * 40
_NUM_TOKENS = 259
"""All bytes and three special tokens: whatever is generated has text."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the trace, as both clients send it."""

    after_s: float
    body: Body


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one client saw."""

    ttft_ms: tuple[float, ...]
    num_failed: int


def read_requests(num_requests: int, divisor: int, speed: float) -> list[Request]:
    """The trace's first requests. A token is a byte, and a block's text begins with its number."""
    block = max(8, _BLOCK_TOKENS // divisor)
    with gzip.open(_TRACE, "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, num_requests)]

    requests = []
    for timestamp_ms, arrivals in groupby(rows, itemgetter("timestamp")):
        together = list(arrivals)
        for number, row in enumerate(together):
            after_s = timestamp_ms / 1e3 + number / len(together) * _ARRIVALS_S
            text = "".join(f"{each:08d}".ljust(block) for each in row["hash_ids"])
            body = {
                "model": ENGINE,
                "prompt": text[: max(1, row["input_length"] * block // _BLOCK_TOKENS)],
                "max_tokens": math.ceil(row["output_length"] / divisor),
                "temperature": 0.0,
                "ignore_eos": True,
                "skip_special_tokens": False,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            requests.append(Request(after_s / speed, body))
    return requests


async def replay(port: int, requests: Sequence[Request]) -> Replayed:
    """Our own client."""
    began_s = time.monotonic()

    async def ask(request: Request) -> float | None:
        await asyncio.sleep(began_s + request.after_s - time.monotonic())
        try:
            return await _ttft_ms(port, request.body)
        except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
            print(f"a request failed: {error}", file=sys.stderr)
            return None

    answers = await asyncio.gather(*map(ask, requests))
    told = tuple(each for each in answers if each is not None)
    return Replayed(told, len(answers) - len(told))


async def _ttft_ms(port: int, body: Body) -> float:
    """The time to the first text: events before it hold parts of a character."""
    sent_s = time.monotonic()
    ttft_ms: float | None = None
    head = b""
    async with contextlib.aclosing(stream_parts(port, body)) as parts:
        async for part in parts:
            if ttft_ms is None:
                head += part
                if _has_text(head):
                    ttft_ms = 1e3 * (time.monotonic() - sent_s)
    if ttft_ms is None:
        raise RuntimeError(f"an answer without text: {head.decode()}")
    return ttft_ms


def _has_text(head: bytes) -> bool:
    lines = [line for line in head.split(b"\n") if line.startswith(EVENT) and line.endswith(b"}")]
    events = [json.loads(line[len(EVENT) - 1 :]) for line in lines]
    return any(choice["text"] for event in events for choice in event["choices"])


async def replay_by_aiperf(
    python: Path, port: int, requests: Sequence[Request], model: Path, folder: Path
) -> Replayed:
    """AIPerf, which sends each body as it is."""
    trace = folder / "trace.jsonl"
    rows = [{"timestamp": 1e3 * each.after_s, "payload": each.body} for each in requests]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [python.parent / "aiperf", "profile", "--model", ENGINE, "--streaming"]
    command += ["--url", f"http://127.0.0.1:{port}", "--endpoint-type", "completions"]
    command += ["--input-file", trace, "--custom-dataset-type", "mooncake_trace"]
    command += ["--fixed-schedule", "--tokenizer", _TOKENIZER, "--use-server-token-count"]
    command += ["--artifact-dir", folder / "results", "--ui", "none", "--workers-max", "1"]

    # Without a network it takes a tokenizer from the cache alone, not from a folder.
    cached = folder / "hub" / f"models--{_TOKENIZER.replace('/', '--')}"
    (cached / "snapshots" / _REVISION).mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(_REVISION)
    for file in model.glob("tokenizer*"):
        (cached / "snapshots" / _REVISION / file.name).write_bytes(file.read_bytes())

    environment = {**os.environ, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=sys.stderr, env=environment
    )
    if await process.wait() != 0:
        raise RuntimeError(f"AIPerf ended with exit code {process.returncode}")
    return _read_results(folder / "results", len(requests))


def _read_results(folder: Path, num_requests: int) -> Replayed:
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").open()]
    told = [record["metrics"].get("time_to_first_token") for record in records]
    ttft_ms = tuple(each["value"] for each in told if each is not None)
    return Replayed(ttft_ms, num_requests - len(ttft_ms))


def make_environment(folder: Path) -> Path:
    """The interpreter of an environment with AIPerf, made if it is not there.

    Raises ConfigError for a folder with anything else in it, or if AIPerf cannot be installed.
    """
    python = folder / "bin" / "python"
    if (folder / "bin" / "aiperf").exists():
        return python

    # Making an environment empties its folder.
    has_files = folder.is_dir() and any(folder.iterdir())
    if has_files and not (folder / "pyvenv.cfg").exists():
        raise ConfigError(f"--environment {folder} holds other files; name an empty folder.")
    print(f"Installing {AIPERF} into {folder} ...", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    pip = subprocess.run([python, "-m", "pip", "install", "--quiet", AIPERF])
    if pip.returncode:
        raise ConfigError(f"pip cannot install {AIPERF} into {folder}; the lines above say why.")
    return python


@contextlib.asynccontextmanager
async def served(options: Options, divisor: int) -> AsyncIterator[tuple[AsyncLLM, Path, int]]:
    """An engine with random weights whose tokens are bytes; its folder, and its server's port."""
    model = DENSE_L16 if options.device == "cuda" else DENSE_TINY
    page_tokens = 1 << max(3, (_BLOCK_TOKENS // divisor).bit_length() - 1)
    max_tokens = max(8, _BLOCK_TOKENS // divisor) * 256
    sections = engine_sections(
        max_model_len=max_tokens,
        page_size=min(64, page_tokens),
        l1_pages=8 * max_tokens // min(64, page_tokens),
        l2_bytes=None,
        chunk_tokens=8192 if options.device == "cuda" else 512,
    )
    with TemporaryDirectory(prefix="raydix-benchmark-") as name:
        folder = Path(name)
        write_demo_checkpoint(folder)
        (folder / "model.safetensors").unlink()
        positions = {"max_position_embeddings": max_tokens, "vocab_size": _NUM_TOKENS}
        (folder / "config.json").write_text(json.dumps({**model, **positions}))
        base = {"path": name, "load_format": "dummy", "device": options.device}
        config = load_config({"model": base}, sections)
        async with await AsyncLLM.start(config, name=ENGINE) as llm, http_front(ENGINE) as port:
            yield llm, folder, port


async def measure(
    options: Options, python: Path, requests: Sequence[Request], divisor: int, speed: float
) -> list[Figure]:
    """Run both clients at the same time, half a step of the trace apart."""
    async with served(options, divisor) as (llm, model, port):
        await replay(port, [Request(0.0, requests[0].body)] * 4)
        await settle(llm.stats)
        with TemporaryDirectory(prefix="raydix-aiperf-") as folder:
            asking = asyncio.create_task(
                replay_by_aiperf(python, port, salted(requests, "aiperf"), model, Path(folder))
            )
            await _until_asked(llm, asking)
            await asyncio.sleep(_ARRIVALS_S / speed / 2)
            ours = await replay(port, salted(requests, "ours"))
            theirs = await asking
    return compare(options, ours, theirs)


def salted(requests: Sequence[Request], salt: str) -> list[Request]:
    """The requests with pages of their own."""
    return [replace(each, body={**each.body, "cache_salt": salt}) for each in requests]


async def _until_asked(llm: AsyncLLM, asking: "asyncio.Task[Replayed]") -> None:
    """Return when the first request runs, or when there will be none."""
    while not asking.done():
        if (await llm.stats())["scheduler"]["num_requests_running"]:
            return
        await asyncio.sleep(_POLL_S)


def compare(options: Options, ours: Replayed, theirs: Replayed) -> list[Figure]:
    """What failed, and how far the medians are apart."""
    here, there = median(ours.ttft_ms), median(theirs.ttft_ms)
    failed = ours.num_failed + theirs.num_failed
    difference = max(here, there) / min(here, there) - 1
    return [
        Figure(name="requests that failed", value=failed, unit="requests", max_value=0),
        Figure(
            name="TTFT p50 by AIPerf",
            value=there,
            unit="ms",
            baseline=here,
            baseline_name="our client",
        ),
        Figure(
            name="difference",
            value=difference,
            unit="of the smaller",
            max_value=options.bar(MAX_DIFFERENCE),
        ),
    ]


def main(arguments: argparse.Namespace) -> int:
    """Measure and report."""
    options = options_of(arguments)
    num_requests = 20 if options.is_tiny else arguments.requests
    divisor, speed = arguments.divisor, arguments.speed
    requests = read_requests(num_requests, divisor, speed)
    python = make_environment(arguments.environment)
    figures = asyncio.run(measure(options, python, requests, divisor, speed))
    model = "dense_l16" if options.device == "cuda" else "tiny"
    config = {"model": model, "requests": num_requests, "divisor": divisor, "speed": speed}
    return options.report("aiperf", config, figures)


def command() -> int:
    """Read the command line and measure."""
    parser = make_parser(__doc__)
    add_options(parser, Options(device="cpu"))
    parser.add_argument("--requests", type=count, default=500, help="of the trace, from its start")
    parser.add_argument("--divisor", type=count, default=64, help="of the trace's lengths")
    parser.add_argument("--speed", type=positive, default=1.0, help="of the trace's clock")
    parser.add_argument(
        "--environment", type=writable_folder, default=_ENVIRONMENT, help="AIPerf's folder"
    )
    return main(parser.parse_args())


if __name__ == "__main__":
    run(command)
