"""`raydix plan`: what sizes of the tiers would find of a trace, before anybody buys them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from raydix.errors import ConfigError
from raydix.runtime.cli.load.picture import require_matplotlib
from raydix.runtime.cli.options import AsJson, Settings, sections_of
from raydix.runtime.cli.output import require_writable, standard_output, written_as
from raydix.runtime.cli.plan_slo import (
    Engine,
    GpusPerNode,
    MaxNodes,
    ProfilePath,
    Seed,
    SloQuestion,
    SloTexts,
    answer_slo,
)
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.values import parse_size
from raydix.runtime.foresight.agentic import read_any_trace
from raydix.runtime.foresight.plan.limits import chains_of
from raydix.runtime.foresight.plan.model_blocks import ModelBytes, TokenBytes, mean_new_blocks
from raydix.runtime.foresight.plan.planning import (
    QUICK_ERROR,
    Gain,
    Mix,
    Plan,
    Question,
    Sizes,
    TierSize,
    make_plan,
)
from raydix.runtime.foresight.traces import TraceRequest, block_tokens_of

_L1_STEPS = (0.25, 0.5, 1.0, 2.0)
_L2_STEPS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The sizes that are compared unless they are given, in parts of what the GPU leaves for L1."""
_SIZES = "Sizes to compare, as 64GiB,128GiB."

TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="A trace of block ids in Mooncake's format, or a .gz."),
]
Model = Annotated[
    str | None,
    typer.Option(help="A YAML configuration, a checkpoint folder, or ORG/NAME on the Hub."),
]
Gpu = Annotated[
    str | None, typer.Option(help="The GPU of each rank, as H200; what it leaves is L1.")
]
TokenBytesOption = Annotated[
    str | None, typer.Option(help="Instead of --model: KV bytes per token, as 96KiB.")
]
L3 = Annotated[str, typer.Option(help="Sizes to compare; `unbounded` is one of them, 0 is no L3.")]
Eviction = Annotated[EvictionPolicy, typer.Option(help="The policy that is shown beside LRU.")]
BlockTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens in a block of the trace. Default: as it says, else 512."),
]
CountAfter = Annotated[
    float, typer.Option(help="Leave this first part of the requests uncounted: 0.5.")
]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial-blocks", help="Keep last blocks that are not whole, as other simulators do."
    ),
]
Prices = Annotated[str | None, typer.Option(help="What a GiB of L1, L2 and L3 costs: 60,6,0.2.")]


_OF_SIZES = (
    *("token_bytes", "l1", "l2", "l3", "eviction", "count_after", "partial_blocks"),
    *("euro_per_gib", "png"),
)
_OF_SLO = ("profile", "gpus_per_node", "max_nodes", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiers:
    """How bytes become blocks, and the L1 that a GPU leaves; None: no GPU is named."""

    blocks: ModelBytes | TokenBytes
    gpu_l1_bytes: int | None


def plan(
    context: typer.Context,
    trace: TraceFile,
    settings: Settings = None,
    *,
    model: Model = None,
    gpu: Gpu = None,
    token_bytes: TokenBytesOption = None,
    l1: Annotated[str | None, typer.Option(help=_SIZES)] = None,
    l2: Annotated[str | None, typer.Option(help=_SIZES)] = None,
    l3: L3 = "0,unbounded",
    eviction: Eviction = EvictionPolicy.LRU,
    block_tokens: BlockTokens = None,
    count_after: CountAfter = 0.0,
    partial_blocks: Partial = False,
    euro_per_gib: Prices = None,
    png: Annotated[Path | None, typer.Option(help="Draw the plan into this file.")] = None,
    slo: SloTexts = None,
    profile: ProfilePath = None,
    gpus_per_node: GpusPerNode = 8,
    max_nodes: MaxNodes = 16,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Say what L1, L2 and L3 of several sizes would find of a trace, and which is worth more.

    The quick depth: the production index and eviction of each tier alone, write-through, all ranks'
    L1 as one, one node's L2. It says nothing about times. With --slo: how many ranks and nodes keep
    times, by the timed depth of `raydix simulate`.
    """
    if slo:
        _require_not_given(context, _OF_SIZES, "--slo simulates engines as they are configured")
        tokens = block_tokens_of(trace, block_tokens)
        fleets = SloQuestion(
            texts=slo, profile=profile, gpus_per_node=gpus_per_node, max_nodes=max_nodes, seed=seed
        )
        engine = Engine(model=model, settings=settings, gpu=gpu)
        answer_slo(fleets, read_any_trace(trace, tokens), tokens, engine, as_json=as_json)
        return
    _require_not_given(context, _OF_SLO, "without --slo ttft_p90=2s nothing is simulated")
    _require_picture(png)
    if not 0 <= count_after < 1:
        raise ConfigError(f"--count-after is {count_after}; expected 0 or more and less than 1.")
    prices = _prices(euro_per_gib)
    tokens = block_tokens_of(trace, block_tokens)
    question = Question(
        requests=read_any_trace(trace, tokens),
        block_tokens=tokens,
        eviction=eviction,
        count_after=count_after,
        with_partial=partial_blocks,
    )
    tiers = _tiers(model, settings, gpu, token_bytes, question)
    found = make_plan(question, _sizes(tiers, l1, l2, l3))
    choice = _choice(found, tiers.gpu_l1_bytes)
    _tell(found, eviction, choice, prices, as_json)
    if png is not None:
        title = _title(trace, model, token_bytes, question.requests)
        _draw(png, found, choice, eviction, title)


def _require_not_given(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Raise ConfigError if an option is given that would be ignored."""
    sources = {each: context.get_parameter_source(each) for each in names}
    given = [each for each, source in sources.items() if source and source.name != "DEFAULT"]
    if given:
        options = ", ".join(f"--{each.replace('_', '-')}" for each in given)
        raise ConfigError(f"{options} would be ignored, as {why}. Leave that out.")


def _require_picture(png: Path | None) -> None:
    """Raise ConfigError now if the picture of a plan, if one is wanted, cannot be written then."""
    if png is not None:
        require_matplotlib()
        require_writable("--png", png)


def _tell(
    found: Plan,
    eviction: EvictionPolicy,
    choice: Mix,
    prices: tuple[float, ...] | None,
    as_json: bool,
) -> None:
    gains = found.gains(choice)
    with standard_output(as_json) as (console, stdout):
        if as_json:
            figures = found.figures() | {"eviction": str(eviction), "choice": _size_figures(choice)}
            figures["next"] = [_gain_figures(gain, prices) for gain in gains]
            print(json.dumps(figures), file=stdout)
        else:
            _print(console, found, eviction, choice, [(gain, prices) for gain in gains])


def _draw(png: Path, found: Plan, choice: Mix, eviction: EvictionPolicy, title: str) -> None:
    from raydix.runtime.cli.plan_picture import draw_plan

    with written_as("--png", png):
        draw_plan(png, found, choice, str(eviction), title)


def _tiers(
    model: str | None,
    settings: list[str] | None,
    gpu: str | None,
    token_bytes: str | None,
    question: Question,
) -> _Tiers:
    """Raises ConfigError unless the bytes of a token are given in one way."""
    if (model is None) == (token_bytes is None):
        raise ConfigError("expected either --model or --token-bytes, which say what a token takes.")
    if token_bytes is not None:
        if gpu is not None or settings:
            raise ConfigError("--gpu and --set say something of a --model, which is not given.")
        found = _parse_sizes("--token-bytes", token_bytes)
        if len(found) != 1 or found[0] < 1:
            raise ConfigError(
                f"--token-bytes is {token_bytes!r}; expected one size above 0, such as 96KiB."
            )
        [num_bytes] = found
        blocks = TokenBytes(token_bytes=num_bytes, block_tokens=question.block_tokens)
        return _Tiers(blocks=blocks, gpu_l1_bytes=None)

    # Imported here, as they bring torch.
    from raydix.runtime.actors.bootstrap.engine_sizes import measure_checkpoint, size_engine
    from raydix.runtime.cli.gpu_kinds import named_gpu

    kind = None if gpu is None else named_gpu(gpu)
    # The engine would run on that GPU, not here, and the tiers below L1 are what is asked for.
    device = [] if gpu is None else ["model.device=cuda", "cache.l3=null", "cache.l2=null"]
    config = load_config(model, sections_of([*(settings or []), *device]))
    measured = measure_checkpoint(config, None if kind is None else kind.capability)
    sizes = size_engine(config, measured, None if kind is None else kind.num_bytes)
    num_ranks = config.parallel.dp * config.parallel.tp
    chains = chains_of(question.requests, with_partial=question.with_partial)
    return _Tiers(
        blocks=ModelBytes(
            config=config,
            layout=sizes.layout,
            block_tokens=question.block_tokens,
            new_blocks=mean_new_blocks(chains),
        ),
        gpu_l1_bytes=None if sizes.l1_bytes is None else sizes.l1_bytes * num_ranks,
    )


def _sizes(tiers: _Tiers, l1: str | None, l2: str | None, l3: str) -> Sizes:
    """Raises ConfigError if nothing says how large L1 is."""
    own = tiers.gpu_l1_bytes
    if l1 is None and own is None:
        raise ConfigError("nothing says how large L1 is. Give --l1 64GiB,128GiB, or --gpu H200.")
    given = _parse_sizes("--l1", l1) if l1 is not None else []
    base = own if own is not None else max(given)
    l1_bytes = given or [int(step * base) for step in _L1_STEPS]
    l2_bytes = _parse_sizes("--l2", l2) if l2 else [int(step * base) for step in _L2_STEPS]
    named = [each for each in l3.split(",") if each != "unbounded"]
    bounded = _parse_sizes("--l3", ",".join(named)) if named else []
    l3_sizes: list[TierSize | None] = [tiers.blocks.l2(each) for each in bounded]
    if "unbounded" in l3.split(","):
        l3_sizes.append(None)
    l1_sizes = [tiers.blocks.l1(each) for each in l1_bytes]
    if not l1_sizes[0].num_blocks:
        raise ConfigError(
            f"--l1 has {format_bytes(l1_bytes[0])}, into which not one block of the trace fits; "
            "expected a larger size."
        )
    return Sizes(
        l1=l1_sizes,
        l2=[tiers.blocks.l2(each) for each in l2_bytes],
        l3=l3_sizes,
    )


def _parse_sizes(option: str, text: str) -> list[int]:
    """Sizes in ascending order, each once."""
    found = set[int]()
    for each in filter(None, text.split(",")):
        try:
            size: Any = parse_size(each)
        except ValueError as error:
            raise ConfigError(f"{option} has {each!r}; {error}.") from None
        found.add(int(size))
    if not found:
        raise ConfigError(f"{option} is {text!r}; expected a size such as 64GiB, or several.")
    return sorted(found)


def _prices(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        prices = tuple(float(each) for each in text.split(","))
    except ValueError:
        prices = ()
    if len(prices) != 3 or not all(0 < price < math.inf for price in prices):
        raise ConfigError(f"--euro-per-gib is {text!r}; expected three prices above 0: 60,6,0.2.")
    return prices


def _choice(found: Plan, gpu_l1_bytes: int | None) -> Mix:
    """The sizes whose neighbours are compared: the GPU's L1, the smallest L2 and L3."""
    wanted = gpu_l1_bytes or 0
    nearest = min(found.mixes, key=lambda mix: abs(mix.l1_bytes - wanted)).l1_bytes
    return next(mix for mix in found.mixes if mix.l1_bytes == nearest)


def _size_figures(mix: Mix) -> dict[str, int | None]:
    return {"l1_bytes": mix.l1_bytes, "l2_bytes": mix.l2_bytes, "l3_bytes": mix.l3_bytes}


def _points_per_euro(gain: Gain, prices: tuple[float, ...]) -> float:
    return gain.points_per_gib / prices[("L1", "L2", "L3").index(gain.tier)]


def _gain_figures(gain: Gain, prices: tuple[float, ...] | None) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "tier": gain.tier,
        "to_bytes": gain.to_bytes,
        "points": gain.points,
        "points_per_gib": gain.points_per_gib,
    }
    if prices is not None:
        figures["points_per_euro"] = _points_per_euro(gain, prices)
    return figures


def _title(
    trace: Path, model: str | None, token_bytes: str | None, requests: Sequence[TraceRequest]
) -> str:
    what = model if model is not None else f"{token_bytes} a token"
    return f"{trace.name}, {len(requests):,} requests, {what}"


def _print(
    console: Console,
    found: Plan,
    eviction: EvictionPolicy,
    choice: Mix,
    gains: list[tuple[Gain, tuple[float, ...] | None]],
) -> None:
    console.print(
        "Percent of prompt tokens. Quick depth, without a profile: index and eviction alone, "
        f"write-through, no times. Error: at most {QUICK_ERROR}.",
        f"A cache without bounds has {found.infinite:.2f}.",
    )
    # LRU is shown once, also where it is what was chosen.
    chosen = () if eviction is EvictionPolicy.LRU else (str(eviction),)
    alone = Table("tier alone", "bytes", "blocks", "lru", *chosen, "MIN")
    for point in found.points:
        shares = (point.lru, *(point.chosen for _ in chosen), point.min)
        alone.add_row(
            point.tier,
            format_bytes(point.num_bytes),
            f"{point.num_blocks:,}",
            *(f"{share:.2f}" for share in shares),
        )
    together = Table("L1 bytes", "L2 bytes", "L3 bytes", "L1", "L2", "L3", "all")
    for mix in found.mixes:
        sizes = (mix.l1_bytes, mix.l2_bytes, mix.l3_bytes)
        together.add_row(
            *["unbounded" if size is None else format_bytes(size) for size in sizes],
            *[f"{share:.2f}" for share in (mix.l1, mix.l2, mix.l3, mix.total)],
        )
    console.print(alone, together)
    if not gains:
        return
    console.print(
        f"From L1 {format_bytes(choice.l1_bytes)}, L2 {format_bytes(choice.l2_bytes)} on:"
    )
    for gain, prices in gains:
        euro = "" if prices is None else f", {_points_per_euro(gain, prices):.4f} per euro"
        console.print(
            f"  {gain.tier} of {format_bytes(gain.to_bytes)}: {gain.points:+.2f} points, "
            f"{gain.points_per_gib:.4f} per GiB{euro}"
        )
