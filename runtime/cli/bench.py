"""`raydix bench`: times, throughput and goodput of an engine or a server under a load."""

import asyncio
import contextlib
import itertools
import json
import os
import platform
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from raydix import __version__
from raydix.errors import BadRequest, ConfigError
from raydix.runtime.cli.engine_access import open_engine
from raydix.runtime.cli.listen_options import SecretFile
from raydix.runtime.cli.load import options
from raydix.runtime.cli.load.arrivals import (
    ClosedLoop,
    Load,
    OpenLoop,
    choose_load,
    measured_alone,
)
from raydix.runtime.cli.load.engine_sender import EngineSender
from raydix.runtime.cli.load.http_sender import HttpSender, HttpServer
from raydix.runtime.cli.load.picture import draw, require_matplotlib
from raydix.runtime.cli.load.report import Outcome, Slo, Summary, figures_of, parse_slo, summarise
from raydix.runtime.cli.load.requests import Conversations, LoadRequest, infinite_share
from raydix.runtime.cli.load.run import Sender, run_load
from raydix.runtime.cli.load.tables import tables
from raydix.runtime.cli.load.traces import read_requests
from raydix.runtime.cli.options import (
    Address,
    AsJson,
    OptionalConnect,
    Settings,
    Source,
    config_unless_connected,
)
from raydix.runtime.cli.output import print_json, standard_output
from raydix.runtime.config.engine import EngineConfig

MakeSender = Callable[[Iterator[str | None]], Sender]
"""A sender whose requests have these cache salts."""
_MAX_ERRORS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent when, and how it is judged."""

    requests: tuple[LoadRequest, ...]
    load: Load
    slo: Slo | None
    salt: str | None = field(repr=False)
    """The cache salt of all requests; None: they have none."""
    with_cold: bool
    """Send what was measured once more, each under a salt of its own."""


class WallClock:
    """A `Clock` that tells real time."""

    def now_s(self) -> float:
        """The seconds of the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(max(0.0, seconds))


def bench(
    source: Source = None,
    *,
    url: options.Url = None,
    model: options.Model = None,
    extra_body: options.ExtraBody = None,
    trace: options.Trace = None,
    max_requests: options.MaxRequests = None,
    block_tokens: options.BlockTokens = None,
    conversations: options.Conversations = 8,
    turns: options.Turns = 4,
    prompt_tokens: options.PromptTokens = 512,
    turn_tokens: options.TurnTokens = 64,
    output_tokens: options.OutputTokens = 32,
    rate: options.Rate = None,
    concurrency: options.Concurrency = None,
    speed: options.Speed = None,
    hints: options.Hints = False,
    seed: options.Seed = 0,
    slo: options.SloTexts = None,
    cold: options.Cold = False,
    salt: options.Salt = None,
    png: options.Png = None,
    settings: Settings = None,
    connect: OptionalConnect = None,
    address: Address = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure times, throughput, goodput and tokens by tier, under a load.

    Of an engine of its own, a running one (--connect) or any server (--url). Exits with 1 if a
    request failed.
    """
    made_up = Conversations(
        num_conversations=conversations, num_turns=turns, prompt_tokens=prompt_tokens,
        turn_tokens=turn_tokens, output_tokens=output_tokens, seed=seed,
    )  # fmt: skip
    requests = choose_requests(made_up, trace, block_tokens, max_requests)
    load = choose_load(
        requests, rate_per_s=rate, max_concurrent=concurrency, speed=speed, seed=seed
    )
    if salt is None and url is None:
        salt = uuid.uuid4().hex
    plan = Plan(requests=requests, load=load, slo=parse_slo(slo or []), salt=salt, with_cold=cold)
    if url is not None and (connect is not None or source is not None or settings):
        raise BadRequest("--url asks a server as it is. Leave out --connect, --set and CONFIG.")
    if url is None and (model is not None or extra_body is not None):
        raise BadRequest("--model and --extra-body are for a server that --url names. Add --url.")
    if url is not None and hints:
        raise BadRequest("--hints are for an engine. Leave out --url, or --hints.")
    config = None if url is not None else config_unless_connected(source, settings, connect)
    opening = (
        _on_engine(config, connect, address, secret_file, with_hints=hints)
        if url is None
        else _on_server(url, model, options.EXTRA_BODY if extra_body is None else extra_body)
    )
    measure(plan, opening, png, as_json)


def choose_requests(
    made_up: Conversations, trace: Path | None, block_tokens: int | None, max_requests: int | None
) -> tuple[LoadRequest, ...]:
    """The requests of the trace, or made-up ones. Raises BadRequest for a part of no trace."""
    if trace is not None:
        return read_requests(trace, made_up.output_tokens, block_tokens, max_requests)
    if max_requests is not None:
        raise BadRequest(
            "--requests takes so many of a trace. Add --trace FILE, or set --conversations and "
            "--turns instead."
        )
    return made_up.requests()


def measure(
    plan: Plan, opening: AbstractAsyncContextManager[MakeSender], png: Path | None, as_json: bool
) -> None:
    """Carry out a plan on what `opening` opens, and report. Exits with 1 if a request failed."""
    if png is not None:
        require_matplotlib()
        if not png.absolute().parent.is_dir():
            raise ConfigError(f"--png {png} is in a folder that does not exist. Make it first.")

    with standard_output(as_json) as (out, stdout):
        outcomes = asyncio.run(run_plan(plan, opening, out))
        summaries = {title: summarise(each, plan.slo) for title, each in outcomes.items()}
        for table in tables(summaries):
            out.print(table)
        share = infinite_share(plan.requests)
        if share is not None:
            out.print(f"A cache without bounds would have {share:.1%} of the prompt tokens.")
        if as_json:
            print_json(record_of(plan, summaries), stdout)
        if png is not None:
            draw(png, outcomes, summaries, plan.slo)
            out.print(f"Drawn in {png}.")

        errors = Counter[str]()
        for summary in summaries.values():
            errors.update(summary.errors)
        for text, count in errors.most_common(_MAX_ERRORS_SHOWN):
            out.print(f"{count} failed: {text}", markup=False, highlight=False)
    if errors:
        sys.exit(1)


async def run_plan(
    plan: Plan, opening: AbstractAsyncContextManager[MakeSender], console: Console
) -> dict[str, list[Outcome]]:
    """What became of the requests, by the title of their load."""
    async with opening as make_sender:
        with Progress(console=console) as bar:
            sender = make_sender(itertools.repeat(plan.salt))
            title = "warm" if plan.with_cold else "all"
            outcomes = {title: await _run(title, plan.requests, plan.load, sender, bar)}

            if plan.with_cold:
                requests, load = measured_alone(plan.requests, plan.load)
                run_id = uuid.uuid4().hex
                sender = make_sender(f"{run_id}-{i}" for i in itertools.count())
                outcomes["cold"] = await _run("cold", requests, load, sender, bar)
    return outcomes


async def _run(
    title: str, requests: tuple[LoadRequest, ...], load: Load, sender: Sender, bar: Progress
) -> list[Outcome]:
    task = bar.add_task(title, total=len(requests))
    return await run_load(requests, load, sender, WallClock(), lambda: bar.advance(task))


def record_of(plan: Plan, summaries: Mapping[str, Summary]) -> dict[str, Any]:
    """The figures for programs, in the shape of the records of `benchmarks/`."""
    has_one = len(summaries) == 1
    load = plan.load
    return {
        "benchmark": "bench",
        "version": __version__,
        "machine": f"{platform.node()} {platform.machine()}",
        "config": {
            "num_requests": len(plan.requests),
            "output_tokens": sum(each.output_tokens for each in plan.requests),
            "max_concurrent": load.max_concurrent if isinstance(load, ClosedLoop) else None,
            "last_arrival_s": load.arrivals_s[-1] if isinstance(load, OpenLoop) else None,
            "infinite_cache_share": infinite_share(plan.requests),
            "slo_s": None if plan.slo is None else asdict(plan.slo),
        },
        "figures": [
            figure
            for title, summary in summaries.items()
            for figure in figures_of(summary, "" if has_one else f"{title}: ")
        ],
    }


@contextlib.asynccontextmanager
async def _on_engine(
    config: EngineConfig | None,
    connect: str | None,
    address: str | None,
    secret_file: Path | None,
    *,
    with_hints: bool,
) -> AsyncIterator[MakeSender]:
    async with await open_engine(config, connect, address, secret_file) as engine:
        yield lambda salts: EngineSender(engine, salts, with_hints=with_hints)


@contextlib.asynccontextmanager
async def _on_server(url: str, model: str | None, extra_body: str) -> AsyncIterator[MakeSender]:
    try:
        fields = json.loads(extra_body)
    except json.JSONDecodeError as error:
        raise BadRequest(f"--extra-body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRequest(f"--extra-body is {extra_body}; expected an object.")

    server = HttpServer(url, api_key=os.environ.get("OPENAI_API_KEY"))
    async with server:
        fields = {"model": model or await server.first_model(), **fields}
        yield lambda salts: HttpSender(server, fields, salts)
