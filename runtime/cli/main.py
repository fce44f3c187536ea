"""The command line. Errors that Raydix raises on purpose are one line on stderr and exit status 1."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from raydix.errors import ConfigError, RaydixError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import apply_set, load_config

app = typer.Typer(
    help="Serve large language models on Ray actors, with computed prefixes kept in GPU, host and storage tiers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(
    help="Look into a running engine's cache, empty it, or change its storage.",
    no_args_is_help=True,
)
config_app = typer.Typer(help="About the configuration.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")
app.add_typer(config_app, name="config")

Source = Annotated[
    str | None,
    typer.Argument(help="A YAML configuration or a checkpoint folder.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Set one key: cache.l1.num_pages=64. Repeatable.", metavar="KEY=VALUE"
    ),
]
Name = Annotated[str, typer.Option("--name", help="Name of the engine that is started.")]
Address = Annotated[
    str | None,
    typer.Option(help="Address of the Ray cluster. Default: the one at hand, else a private one."),
]
Connect = Annotated[
    str | None,
    typer.Option("--connect", help="Use the running engine of this name.", metavar="NAME"),
]
Engine = Annotated[
    str, typer.Option("--connect", help="Name of the running engine.", metavar="NAME")
]
_TIERS = ("l1", "l2", "l3")
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        app()
    except RaydixError as error:
        _fail(error)
    except ExceptionGroup as group:
        expected, others = group.split(RaydixError)
        if expected is None or others is not None:
            raise
        first: BaseException = expected
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        _fail(first)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _fail(error: BaseException) -> NoReturn:
    print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(1)


@app.command()
def serve(
    source: Source = None, settings: Settings = None, name: Name = "raydix", address: Address = None
) -> None:
    """Start an engine and keep it up until Ctrl-C; reach it with AsyncLLM.connect(NAME)."""
    config = load_config(source, _sections(settings))
    from raydix.runtime.cli.session import serve_until_stopped

    asyncio.run(serve_until_stopped(config, name, address, Console()))


@app.command()
def generate(
    source: Source = None,
    *,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt. Repeatable.")] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(help="A prompt per line; in .jsonl files text, token ids or an object."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Default: the rest of the context.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end-of-sequence token.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Take each prompt as a user's message.")
    ] = False,
    settings: Settings = None,
    connect: Connect = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Generate from prompts, with an engine of its own or a running one."""
    config = _config_unless_connected(source, settings, connect)
    from raydix.runtime.api.sampling_params import SamplingParams
    from raydix.runtime.cli.session import generate_all, open_engine, read_prompts

    prompts = read_prompts(prompt or [], prompts_file)
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=seed, ignore_eos=ignore_eos
    )

    async def run(out: Console, stdout: TextIO) -> None:
        async with open_engine(config, connect, address) as engine:
            async for answer in generate_all(engine, prompts, params, as_chat=chat):
                if as_json:
                    _print_json(answer, stdout)
                else:
                    out.print(answer["text"] or answer["token_ids"], markup=False, highlight=False)

    with _standard_output(as_json) as (out, stdout):
        asyncio.run(run(out, stdout))


@app.command()
def demo(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every token with transformers.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the second engine up until Ctrl-C.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where checkpoint and L3 files go and stay. Default: a temporary folder."
        ),
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Chat through all three tiers with a small random model, across a restart of the engine."""
    from raydix.runtime.actors.private_folder import PrivateFolder
    from raydix.runtime.cli.demo import DemoOptions, run_demo

    with contextlib.ExitStack() as stack:
        out, stdout = stack.enter_context(_standard_output(as_json))
        if folder is None:
            # Should this process be killed, the next engine on this host removes it.
            private = PrivateFolder()
            stack.callback(private.remove)
            folder = Path(private.path)
        options = DemoOptions(folder=folder, sections=_sections(settings), verify=verify, hold=hold)
        record = asyncio.run(run_demo(options, out))
        if as_json:
            _print_json(record, stdout)
    sys.exit(0 if record["passed"] else 1)


@app.command()
def bench(
    source: Source = None,
    *,
    conversations: Annotated[int, typer.Option(min=1)] = 8,
    turns: Annotated[
        int, typer.Option(min=2, help="Turns per conversation; all but the first count.")
    ] = 4,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 4,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Of a conversation's first prompt.")
    ] = 512,
    turn_tokens: Annotated[
        int, typer.Option(min=1, help="Added by each later turn, besides the output.")
    ] = 64,
    output_tokens: Annotated[int, typer.Option(min=2)] = 32,
    seed: Annotated[int, typer.Option(help="Of the random prompts.")] = 0,
    settings: Settings = None,
    connect: Connect = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Measure times to first and per output token under a multi-turn load, cold and warm."""
    config = _config_unless_connected(source, settings, connect)
    from raydix.runtime.cli.bench import Load, run_bench
    from raydix.runtime.cli.session import open_engine

    load = Load(
        num_conversations=conversations,
        num_turns=turns,
        max_concurrent=concurrency,
        prompt_tokens=prompt_tokens,
        turn_tokens=turn_tokens,
        output_tokens=output_tokens,
        seed=seed,
    )

    async def run(out: Console) -> dict[str, Any]:
        async with open_engine(config, connect, address) as engine:
            return await run_bench(engine, load, out)

    with _standard_output(as_json) as (out, stdout):
        record = asyncio.run(run(out))
        if as_json:
            _print_json(record, stdout)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check Python, packages, memory, shared memory, storage and devices; exit 1 if something is in
    the way.
    """
    from raydix.runtime.cli.doctor import examine

    findings = examine()
    if as_json:
        found = [
            {
                "subject": each.subject,
                "ok": each.is_ok,
                "optional": each.is_optional,
                "detail": each.detail,
            }
            for each in findings
        ]
        _print_json(found, sys.stdout)
    else:
        table = Table(show_header=False, box=None)
        for each in findings:
            mark = (
                "[green]ok[/]"
                if each.is_ok
                else "[yellow]--[/]"
                if each.is_optional
                else "[red]!![/]"
            )
            table.add_row(mark, each.subject, escape(each.detail))
        Console().print(table)
    sys.exit(0 if all(each.is_ok or each.is_optional for each in findings) else 1)


@cache_app.command("stats")
def cache_stats(
    connect: Engine = "raydix",
    address: Address = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Every figure of every actor, by name.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say where prompt tokens came from, what each tier holds and what storage did. JSON has every
    figure.
    """
    from raydix.runtime.cli.cache_tables import stats_tables
    from raydix.runtime.cli.session import cache_stats as read_stats

    stats = asyncio.run(read_stats(connect, address))
    if as_json or show_all:
        _print_values(stats, as_json)
        return
    for table in stats_tables(stats):
        Console().print(table)


@cache_app.command("flush")
def cache_flush(
    connect: Engine = "raydix",
    address: Address = None,
    l3: Annotated[bool, typer.Option("--l3", help="Also this model's objects in storage.")] = False,
    as_json: Json = False,
) -> None:
    """Drop what a running engine has cached in L1 and L2; pages in use stay."""
    from raydix.runtime.cli.session import cache_flush as flush

    _print_values(asyncio.run(flush(connect, address, l3)), as_json)


@cache_app.command("attach")
def cache_attach(
    connect: Engine = "raydix",
    address: Address = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Use another L3 backend from now on: --set cache.l3.backend=file --set cache.l3.path=DIR.
    Requests go on.
    """
    sections = _sections(settings)
    section = sections.get("cache", {}).get("l3") if set(sections) == {"cache"} else None
    if not isinstance(section, dict) or set(sections["cache"]) != {"l3"}:
        raise ConfigError(
            "cache attach sets cache.l3 and nothing else. Give --set cache.l3.backend=NAME and "
            "what that backend "
            "needs; cache detach takes it away."
        )
    from raydix.runtime.cli.session import cache_attach as attach

    _print_values(asyncio.run(attach(connect, address, section)), as_json)


@cache_app.command("detach")
def cache_detach(
    connect: Engine = "raydix", address: Address = None, as_json: Json = False
) -> None:
    """Go on without L3. Requests go on, and what L3 holds stays there."""
    from raydix.runtime.cli.session import cache_detach as detach

    _print_values(asyncio.run(detach(connect, address)), as_json)


@cache_app.command("prefetch")
def cache_prefetch(
    file: Annotated[
        Path,
        typer.Option(
            "--file", help="A prompt per line; in .jsonl files text, token ids or an object."
        ),
    ],
    connect: Engine = "raydix",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Bring to L2 what L3 has of a file's prompts, and say where their tokens were. Computes
    nothing.
    """
    from raydix.runtime.cli.session import cache_prefetch as prefetch

    prompts = asyncio.run(prefetch(connect, address, file))
    if as_json:
        _print_json(prompts, sys.stdout)
        return
    table = Table("prompt", "tokens", *_TIERS, "absent")
    for number, sources in enumerate(prompts, start=1):
        found = [sources.get(tier, 0) for tier in _TIERS]
        counts = (sum(sources.values()), *found, sum(sources.values()) - sum(found))
        table.add_row(str(number), *(f"{count:,}" for count in counts))
    Console().print(table)


@cache_app.command("explain")
def cache_explain(
    request_id: Annotated[str, typer.Argument(help="One of the last 1,024 requests.")],
    connect: Engine = "raydix",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Say for each range of a request's prompt which tier it came from, or why it was computed."""
    from raydix.runtime.cli.cache_tables import explanation_table
    from raydix.runtime.cli.session import cache_explain as explain

    explanation = asyncio.run(explain(connect, address, request_id))
    if as_json:
        _print_json(explanation, sys.stdout)
        return
    Console().print(explanation_table(explanation))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of the configuration."""
    print(json.dumps(EngineConfig.model_json_schema(), indent=2))


def _sections(settings: list[str] | None) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for assignment in settings or []:
        sections = apply_set(sections, assignment)
    return sections


def _config_unless_connected(
    source: str | None, settings: list[str] | None, connect: str | None
) -> EngineConfig | None:
    if connect is None:
        return load_config(source, _sections(settings))
    if source is not None or settings:
        raise ConfigError(
            "--connect uses a running engine as it is. Leave out the configuration and --set."
        )
    return None


@contextlib.contextmanager
def _standard_output(as_json: bool) -> Iterator[tuple[Console, TextIO]]:
    """The console for people, and standard output. With `--json` the console, Ray and all prints go
    to stderr.
    """
    stdout = sys.stdout
    if not as_json:
        yield Console(), stdout
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield Console(stderr=True), stdout


def _print_json(value: Any, stream: TextIO) -> None:
    print(json.dumps(value), file=stream, flush=True)


def _print_values(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(values, sys.stdout)
        return
    table = Table(show_header=False, box=None)
    for key, value in _flat(values):
        table.add_row(key, f"{value:,.6g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested dicts, sorted."""
    for key, value in sorted(values.items()):
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
