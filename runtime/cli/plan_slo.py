"""`raydix plan --slo`: how many ranks and nodes a trace needs, by the timed simulator."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from raydix.errors import ConfigError
from raydix.runtime.cli.options import sections_of
from raydix.runtime.cli.output import standard_output
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.client import FailureKind

if TYPE_CHECKING:
    from raydix.runtime.foresight.plan.fleet import Fleet, Target, Trial
    from raydix.runtime.foresight.simulator.profile import Profile
    from raydix.runtime.foresight.simulator.simulation import Outcome
    from raydix.runtime.foresight.traces import TraceRequest

SloTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--slo",
        metavar="NAME=TIME",
        help="Say how many ranks and nodes keep this instead: ttft_p90=2s, ttft_p50, tpot. "
        "Repeatable.",
    ),
]
ProfilePath = Annotated[
    Path | None,
    typer.Option("--profile", help="--slo: the times of the machine: see `raydix profile`."),
]
GpusPerNode = Annotated[int, typer.Option(min=1, help="--slo: the GPUs of a node.")]
MaxNodes = Annotated[int, typer.Option(min=1, help="--slo: the most nodes that are tried.")]
Seed = Annotated[int, typer.Option(help="--slo: of all that is drawn.")]


_TOO_LONG = FailureKind.PROMPT_TOO_LONG.value


@dataclass(frozen=True, slots=True, kw_only=True)
class SloQuestion:
    """What is to be kept, by which nodes, with which times."""

    texts: list[str]
    profile: Path | None
    gpus_per_node: int
    max_nodes: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What `--model`, `--set` and `--gpu` say of the engines."""

    model: str | None
    settings: list[str] | None
    gpu: str | None


def answer_slo(
    question: SloQuestion,
    requests: "Sequence[TraceRequest]",
    block_tokens: int,
    engine: Engine,
    *,
    as_json: bool,
) -> None:
    """Try sizes of a service and print each. Exits with 1 if none is enough.

    Raises ConfigError and BadRequest for what cannot be asked.
    """
    # Imported here, as the simulator brings torch with the checkpoint's sizes.
    from raydix.runtime.foresight.plan.fleet import parse_target, search, smallest
    from raydix.runtime.foresight.simulator.profile import read_profile

    targets = tuple(parse_target(text) for text in question.texts)
    if question.profile is None:
        raise ConfigError(
            "--slo asks for times, which depend on the machine. Add --profile FILE: `raydix "
            "profile` measures one on a running engine; configs/profiles has one of an H200."
        )
    times = read_profile(question.profile)
    simulate, ladder = _simulator(question, times, requests, block_tokens, engine)

    trials: list[Trial] = []
    with standard_output(as_json) as (console, stdout):
        for trial in search(simulate, targets, max_nodes=question.max_nodes, **ladder):
            for target in targets:
                target.require_times(trial.outcome)
            trials.append(trial)
            console.print(_size(trial.fleet), "is" if trial.is_enough else "is not", "enough")
            if num_long := trial.outcome.failures.get(_TOO_LONG, 0):
                raise ConfigError(
                    f"{num_long:,} of {trial.outcome.num_requests:,} prompts are too long for the "
                    "engines of --model, however many there are. Raise model.max_model_len or "
                    "cache.l1.num_pages, or leave these requests out of the trace."
                )
        if as_json:
            print(json.dumps(_figures(question, times, targets, trials)), file=stdout)
        else:
            _print(console, question, times, targets, trials)
    if smallest(trials) is None:
        raise typer.Exit(1)


def _figures(
    question: SloQuestion, times: "Profile", targets: "tuple[Target, ...]", trials: "list[Trial]"
) -> dict[str, Any]:
    from raydix.runtime.foresight.plan.fleet import TIMED_ERROR, smallest

    found = smallest(trials)
    return {
        "depth": "timed",
        "profile": times.name,
        "error": TIMED_ERROR,
        "seed": question.seed,
        "targets_s": {target.name: target.seconds for target in targets},
        "answer": None if found is None else found.figures(),
        "trials": [trial.figures() for trial in trials],
    }


def _simulator(
    question: SloQuestion,
    times: "Profile",
    requests: "Sequence[TraceRequest]",
    block_tokens: int,
    engine: Engine,
) -> "tuple[Callable[[Fleet], Outcome], dict[str, int]]":
    """What simulates a size of the service, and what bounds a node's."""
    from raydix.runtime.actors.bootstrap.engine_sizes import measure_checkpoint, size_engine
    from raydix.runtime.cli.gpu_kinds import named_gpu
    from raydix.runtime.cli.simulated_progress import now_and_then
    from raydix.runtime.cli.simulated_service import service_of
    from raydix.runtime.foresight.simulator.requests import requests_of
    from raydix.runtime.foresight.simulator.simulation import Simulation
    from raydix.runtime.foresight.simulator.world import Rules

    model, settings, gpu = engine.model, engine.settings, engine.gpu
    if model is None:
        raise ConfigError("--slo simulates engines. Add --model CONFIG, a configuration of theirs.")
    kind = None if gpu is None else named_gpu(gpu)
    device = [] if gpu is None else ["model.device=cuda"]
    config = load_config(model, sections_of([*(settings or []), *device, "parallel.dp=1"]))
    max_lanes = question.gpus_per_node // config.parallel.tp
    if not max_lanes:
        raise ConfigError(
            f"parallel.tp is {config.parallel.tp}, and a node has {question.gpus_per_node} GPUs; "
            "expected as many at least. Set --gpus-per-node."
        )
    checkpoint = measure_checkpoint(config, None if kind is None else kind.capability)
    asked = requests_of(requests, block_tokens, is_closed_loop=False)

    def simulate(fleet: "Fleet") -> "Outcome":
        dp = f"parallel.dp={fleet.lanes_per_node}"
        sized = load_config(model, sections_of([*(settings or []), *device, dp]))
        sizes = size_engine(sized, checkpoint, None if kind is None else kind.num_bytes)
        service = service_of(sized, sizes, checkpoint.vocab_size, num_nodes=fleet.num_nodes)
        return Simulation(service, times, asked, Rules(seed=question.seed)).run(now_and_then())

    return simulate, {"max_lanes_per_node": max_lanes, "ranks_per_lane": config.parallel.tp}


def _size(fleet: "Fleet") -> str:
    def count(number: int, name: str) -> str:
        return f"{number} {name}" + ("" if number == 1 else "s")

    nodes, ranks = count(fleet.num_nodes, "node"), count(fleet.ranks_per_node, "rank")
    return f"{nodes} with {ranks}" + (" each" if fleet.num_nodes > 1 else "")


def _print(
    console: Console,
    question: SloQuestion,
    times: "Profile",
    targets: "tuple[Target, ...]",
    trials: "list[Trial]",
) -> None:
    from raydix.runtime.foresight.plan.fleet import TIMED_ERROR, smallest

    table = Table("nodes", "ranks", *(target.name for target in targets), "hits", "failed", "")
    for trial in sorted(trials, key=lambda trial: trial.fleet.num_ranks):
        table.add_row(
            str(trial.fleet.num_nodes),
            str(trial.fleet.num_ranks),
            *(_time(target, trial) for target in targets),
            f"{trial.outcome.hit_fraction:.2%}",
            f"{sum(trial.outcome.failures.values()):,}",
            "enough" if trial.is_enough else "",
        )
    console.print(table)
    console.print(
        f"Timed depth, profile {times.name}, seed {question.seed}. Error: {TIMED_ERROR}.",
        highlight=False,
    )
    found = smallest(trials)
    console.print(
        f"None up to {question.max_nodes} nodes is enough."
        if found is None
        else f"The smallest that is enough: {_size(found.fleet)}.",
        highlight=False,
    )


def _time(target: "Target", trial: "Trial") -> str:
    found = target.found(trial.outcome)
    return "" if found is None else f"{found:.3g} s"
