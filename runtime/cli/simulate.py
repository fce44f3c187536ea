"""`raydix simulate`: a trace on engines that are not there, by production's own decisions."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from raydix.errors import BadRequest
from raydix.runtime.cli.options import AsJson, Settings, bytes_of, sections_of
from raydix.runtime.cli.output import print_json
from raydix.runtime.cli.source_table import source_table
from raydix.runtime.config.loading import load_config
from raydix.runtime.garbage import spare_long_lived_objects

if TYPE_CHECKING:
    from raydix.runtime.foresight.simulator.simulation import KillKind, Outcome

Config = Annotated[str, typer.Argument(help="A YAML configuration, or a checkpoint folder.")]
Trace = Annotated[Path, typer.Argument(help="A trace in Mooncake's format, perhaps .gz.")]
ProfilePath = Annotated[
    Path, typer.Option("--profile", help="The times of the machine: see `raydix profile`.")
]
Nodes = Annotated[int, typer.Option(min=1, help="Nodes, with one engine on each.")]
PrefillNodes = Annotated[
    int | None,
    typer.Option(
        "--prefill-nodes",
        min=1,
        metavar="K",
        help="Let the engines of K of the nodes compute long prompts for the others, as `raydix "
        "serve` has it.",
    ),
]
Roles = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE,...",
        help="Several engines on each node, which share its L2: prefill,decode,decode has one for "
        "prompts and two that go on with them.",
    ),
]
Limit = Annotated[int | None, typer.Option("--requests", min=1, help="The first so many alone.")]
BlockTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens in a block of the trace. Default: as it says, else 512."),
]
ClosedLoop = Annotated[
    bool,
    typer.Option(
        "--closed-loop",
        help="A session's next request comes a pause after the simulated answer.",
    ),
]
AnswerTokens = Annotated[
    int,
    typer.Option(
        "--tokens-per-simulated",
        min=1,
        help="Simulate one token for so many of each answer, which is as much quicker.",
    ),
]
Seed = Annotated[int, typer.Option(help="Of all that is drawn: equal seeds print equal bytes.")]
Kill = Annotated[
    list[str] | None,
    typer.Option(
        "--kill",
        metavar="KIND=N",
        help="Kill N of rank, host, engine or node while requests come. Repeatable.",
    ),
]
GpuMemory = Annotated[
    str | None, typer.Option(help="Memory of each GPU, as 80GiB, where L1 depends on it.")
]
CheckEvery = Annotated[
    int, typer.Option(min=0, help="Prove all invariants after so many events; 0: at the end.")
]


def simulate(
    source: Config,
    trace: Trace,
    profile: ProfilePath,
    *,
    nodes: Nodes = 1,
    prefill_nodes: PrefillNodes = None,
    roles: Roles = None,
    requests: Limit = None,
    block_tokens: BlockTokens = None,
    closed_loop: ClosedLoop = False,
    tokens_per_simulated: AnswerTokens = 1,
    seed: Seed = 0,
    kill: Kill = None,
    gpu_memory: GpuMemory = None,
    check_every: CheckEvery = 0,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say what engines of a configuration would do with a trace. Nothing is started.

    Routers, Schedulers, HostMemories and L3's order are production's own; steps, copies and links
    take their time from a profile. Needs no GPU and no weights, but the checkpoint's config.json.
    """
    # Imported here: the simulator brings torch with the checkpoint's sizes.
    from raydix.runtime.actors.bootstrap.engine_sizes import measure_checkpoint, size_engine
    from raydix.runtime.cli.simulated_progress import now_and_then
    from raydix.runtime.cli.simulated_roles import named, with_roles
    from raydix.runtime.cli.simulated_service import service_of
    from raydix.runtime.foresight.simulator.profile import read_profile
    from raydix.runtime.foresight.simulator.requests import requests_of
    from raydix.runtime.foresight.simulator.simulation import Simulation
    from raydix.runtime.foresight.simulator.world import Rules
    from raydix.runtime.foresight.traces import block_tokens_of, read_trace

    times = read_profile(profile)
    tokens = block_tokens_of(trace, block_tokens)
    asked = requests_of(read_trace(trace, tokens)[:requests], tokens, is_closed_loop=closed_loop)
    config = load_config(source, sections_of(settings))
    model = measure_checkpoint(config)
    sizes = size_engine(config, model, bytes_of("--gpu-memory", gpu_memory))
    service = service_of(
        config, sizes, model.vocab_size, num_nodes=nodes, kills=_kills_of(kill or [])
    )
    rules = Rules(seed=seed, tokens_per_simulated=tokens_per_simulated, check_interval=check_every)
    service = with_roles(service, config, rules, num_prefill=prefill_nodes, told=roles)

    simulation = Simulation(service, times, asked, rules)
    spare_long_lived_objects()
    began_s = time.monotonic()
    outcome, took_s = simulation.run(now_and_then()), time.monotonic() - began_s
    if as_json:
        # Without the time that it took, as equal seeds are to print equal bytes.
        print_json({"depth": "timed", "profile": times.name, "seed": seed, **outcome.figures()})
    else:
        _print(outcome, f"timed, profile {times.name}, {named(service)}, seed {seed}")
    print(f"{outcome.num_events:,} events in {took_s:.1f} s", file=sys.stderr)
    if sum(outcome.failures.values()) == outcome.num_requests:
        # Nothing was simulated: the reason is among the figures.
        raise typer.Exit(1)


def _kills_of(texts: list[str]) -> "tuple[tuple[KillKind, int], ...]":
    from raydix.runtime.foresight.simulator.simulation import KillKind

    kills = []
    for text in texts:
        kind, _, count = text.partition("=")
        if kind not in list(KillKind) or not count.isdecimal():
            raise BadRequest(
                f"--kill is {text}; expected KIND=N with a kind among {', '.join(KillKind)}, such "
                "as rank=3."
            )
        kills.append((KillKind(kind), int(count)))
    return tuple(kills)


def _print(outcome: "Outcome", title: str) -> None:
    console = Console()
    console.print(source_table({title: outcome.prompt_tokens}))
    table = Table(title="Times")
    for name in ("", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left")
    rows = [
        ("first token", outcome.first_token_s),
        ("each next token", outcome.next_token_s),
        ("gap between tokens", outcome.gap_s),
        ("hand-over", outcome.hand_over_s),
    ]
    for label, values in rows:
        if not values and label in ("gap between tokens", "hand-over"):
            continue
        cells = [
            f"{1e3 * values[name]:,.1f} ms" if values else "" for name in ("p50", "p90", "p99")
        ]
        table.add_row(label, *cells)
    console.print(table)
    console.print(_summary(outcome), highlight=False, soft_wrap=True)


def _summary(outcome: "Outcome") -> str:
    requests = _counted(outcome.num_requests, "request")
    told = [
        f"{requests} in {outcome.duration_s:,.1f} s of the trace's time",
        f"{outcome.tokens_per_s:,.0f} tokens/s of answers",
        f"hits {outcome.hit_fraction:.2%}",
    ]
    if outcome.num_handed_over:
        told.append(f"{outcome.num_handed_over:,} began at one engine and went on at another")
    if outcome.num_asked_again:
        told.append(f"{outcome.num_asked_again} sent anew after deaths")
    if outcome.num_cut_answers:
        told.append(f"{_counted(outcome.num_cut_answers, 'answer')} cut where the context ends")
    if outcome.failures:
        failed: dict[str, Any] = outcome.failures
        told.append("failed: " + ", ".join(f"{kind} {num}" for kind, num in failed.items()))
    return "; ".join(told)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
