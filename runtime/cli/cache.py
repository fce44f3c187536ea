"""`raydix cache ...`: look into a running engine's cache, empty it, or change its storage."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from rich.console import Console

from raydix.errors import BadParameter, BadRequest, BatchFailed, ConfigError
from raydix.runtime.cli.cache_tables import (
    explanation_table,
    pins_table,
    prefetch_table,
    stats_tables,
)
from raydix.runtime.cli.engine_access import Where
from raydix.runtime.cli.listen_options import SecretFile
from raydix.runtime.cli.options import (
    PROMPT_FILE_HELP,
    Address,
    AsJson,
    CacheSalt,
    Connect,
    Lazy,
    Settings,
    lazy_storage,
    sections_of,
)
from raydix.runtime.cli.output import print_json, print_values
from raydix.runtime.cli.prompt_file import FilePrompt, read_prompt_file
from raydix.runtime.server.keys import Caller, Role, tenant_name

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM
    from raydix.runtime.api.pins import PinnedPrompt

T = TypeVar("T")
OfTenant = Annotated[
    str | None, typer.Option(help="Of the key file: what this tenant asks over HTTP will hit.")
]

app = typer.Typer(
    help="Look into a running engine's cache, empty it, or change its storage.",
    no_args_is_help=True,
)


@app.command()
def stats(
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Every figure of every actor, by name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say where prompt tokens came from, what each tier holds, and what storage did.

    JSON has every figure.
    """
    where = Where(connect, address, secret_file)
    figures = ask_engine(where, lambda engine: engine.stats())
    if as_json or show_all:
        print_values(figures, as_json)
        return
    for table in stats_tables(figures):
        Console().print(table)


@app.command()
def flush(
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    l3: Annotated[bool, typer.Option("--l3", help="Also this model's objects in storage.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop what a running engine has cached in L1 and L2; pages in use stay."""
    where = Where(connect, address, secret_file)
    dropped = ask_engine(where, lambda engine: engine.flush(l3=l3))
    print_values(dropped, as_json)


@app.command()
def attach(
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    settings: Settings = None,
    lazy: Lazy = False,
    as_json: AsJson = False,
) -> None:
    """Use another L3 backend from now on. Requests go on.

    Name it by --set cache.l3.backend=file --set cache.l3.path=DIR.
    """
    section = _l3_section(lazy_storage(lazy, sections_of(settings)))
    where = Where(connect, address, secret_file)
    names = ask_engine(where, lambda engine: engine.attach_storage(section))
    if as_json:
        print_json(names)
        return
    former = "it had no L3 before" if names["detached"] is None else f"it left {names['detached']}"
    print(f"Engine {connect} uses {names['attached']} from now on; {former}.")


@app.command()
def detach(
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Go on without L3. Requests go on, and what L3 holds stays there."""
    where = Where(connect, address, secret_file)
    names = ask_engine(where, lambda engine: engine.detach_storage())
    if as_json:
        print_json(names)
        return
    former = "it had none" if names["detached"] is None else f"it left {names['detached']}"
    print(f"Engine {connect} goes on without L3; {former}.")


@app.command()
def prefetch(
    file: Annotated[Path, typer.Option("--file", help=PROMPT_FILE_HELP)],
    *,
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    cache_salt: CacheSalt = None,
    tenant: OfTenant = None,
    as_json: AsJson = False,
) -> None:
    """Bring to L2 what L3 has of a file's prompts, and say where their tokens were.

    Computes nothing. A prompt that fails does not keep the others from it; then this exits with 1.
    """
    where = Where(connect, address, secret_file)
    salt = _salt_of(tenant, cache_salt)
    sources_by_prompt: list[dict[str, int] | None]
    failure: BatchFailed | None = None
    try:
        sources_by_prompt = [*asyncio.run(prefetch_file(where, file, salt))]
    except BatchFailed as error:
        sources_by_prompt, failure = cast(list[dict[str, int] | None], error.outputs), error

    if as_json:
        print_json(sources_by_prompt)
    else:
        Console().print(prefetch_table(sources_by_prompt))
    if failure is not None:
        raise failure


@app.command()
def pin(
    file: Annotated[Path, typer.Option("--file", help=PROMPT_FILE_HELP)],
    *,
    keep_s: Annotated[float, typer.Option(help="Hold their pages for so long.")] = 3600.0,
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    cache_salt: CacheSalt = None,
    tenant: OfTenant = None,
    as_json: AsJson = False,
) -> None:
    """Bring a file's prompts to L2, as prefetch does, and hold there what is there of them."""
    where = Where(connect, address, secret_file)
    salt = _salt_of(tenant, cache_salt)
    prompts = read_prompt_file(file, "--file")
    if not prompts:
        raise BadRequest(f"--file {file} holds no prompt; expected one per line.")

    pinned = ask_engine(where, lambda engine: _pin_all(engine, prompts, keep_s, salt))
    if as_json:
        print_json([asdict(each) for each in pinned])
        return
    for each in pinned:
        what = f"{each.num_pinned_tokens:,} of {sum(each.tokens_by_source.values()):,} tokens"
        name = f"pin {each.pin_id}" if each.num_pinned_tokens else "no pin"
        print(f"{name}: {what} are held in L2")


@app.command()
def pins(
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """List what is pinned in a running engine's L2, for whom, and for how long."""
    where = Where(connect, address, secret_file)
    shown = ask_engine(where, lambda engine: engine.pins.shown())
    if as_json:
        print_json(shown)
        return
    Console().print(pins_table(shown))


@app.command()
def unpin(
    pin_id: Annotated[str, typer.Argument(help="The pin, as cache pins lists it.")],
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
) -> None:
    """Hold a pinned prompt no more."""
    where = Where(connect, address, secret_file)
    if not ask_engine(where, lambda engine: engine.pins.release(pin_id)):
        raise BadRequest(f"Engine {connect} has no pin {pin_id!r}. raydix cache pins lists them.")
    print(f"Engine {connect} holds {pin_id} no more.")


@app.command()
def retain(
    session_id: Annotated[str, typer.Argument(help="The session, as its requests name it.")],
    *,
    end: Annotated[bool, typer.Option("--end", help="No further request of it comes.")] = False,
    keep_s: Annotated[float | None, typer.Option(help="Keep its pages for so long.")] = None,
    resume_in_s: Annotated[float | None, typer.Option(help="It goes on in so long.")] = None,
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    cache_salt: CacheSalt = None,
) -> None:
    """Tell a running engine what comes next of a session: a hint of which pages go first."""
    given = {"end": end or None, "keep_s": keep_s, "resume_in_s": resume_in_s}
    hint = {name: value for name, value in given.items() if value is not None}
    if len(hint) != 1:
        raise BadRequest("cache retain takes exactly one of --end, --keep-s and --resume-in-s.")
    where = Where(connect, address, secret_file)
    ask_engine(where, lambda engine: engine.retain(session_id, hint, cache_salt=cache_salt))
    print(f"Engine {connect} was told about session {session_id}.")


@app.command()
def explain(
    request_id: Annotated[str, typer.Argument(help="One of the last 1,024, or of an HTTP answer.")],
    connect: Connect = "raydix",
    address: Address = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Say for each range of a request's prompt which tier it came from, or why it was computed."""
    where = Where(connect, address, secret_file)
    explanation = ask_engine(where, lambda engine: engine.explain(request_id))
    if as_json:
        print_json(explanation)
        return
    Console().print(explanation_table(explanation))


async def prefetch_file(
    where: Where, path: Path, cache_salt: str | None = None
) -> list[dict[str, int]]:
    """Prefetch a file's prompts on a running engine; for each prompt its tokens by source.

    Raises BadRequest for a file without prompts, and if the engine has no L3 to fetch from; and
    BatchFailed if prompts fail.
    """
    from raydix.runtime.api.llm import prefetch_all

    prompts = read_prompt_file(path, "--file")
    if not prompts:
        raise BadRequest(f"--file {path} holds no prompt; expected one per line.")

    async with where.handle() as engine:
        host = (await engine.stats()).get("host")
        if host is not None and host["l3_breaker"] == "none":
            raise BadRequest(
                f"Engine {engine.name} has no L3 to fetch from. Set cache.l3, or use raydix cache "
                "attach."
            )
        return await prefetch_all(engine, [each.prompt for each in prompts], cache_salt)


async def _pin_all(
    engine: "AsyncLLM", prompts: Sequence[FilePrompt], keep_s: float, cache_salt: str | None
) -> list["PinnedPrompt"]:
    """Pin prompts, one after the other. Raises BadRequest: in which line one is wrong."""
    pinned: list[PinnedPrompt] = []
    for each in prompts:
        try:
            added = await engine.pins.add(each.prompt, keep_s=keep_s, cache_salt=cache_salt)
        except BadParameter:
            # It is of an option, and no line has a part in it.
            raise
        except BadRequest as error:
            raise BadRequest(
                f"{each.place}: {error} What stands before it in the file is pinned; raydix cache "
                "pins lists it."
            ) from error
        pinned.append(added)
    return pinned


def ask_engine(where: Where, ask: Callable[["AsyncLLM"], Awaitable[T]]) -> T:
    """The answer of a running engine, which goes on."""

    async def run() -> T:
        async with where.handle() as engine:
            return await ask(engine)

    return asyncio.run(run())


def _salt_of(tenant: str | None, cache_salt: str | None) -> str | None:
    """The salt of what a tenant asks over HTTP with this one. Raises ConfigError."""
    if tenant is not None:
        tenant_name(tenant, "--tenant")
    return Caller(Role.TENANT, tenant).within_tenant(cache_salt)


def _l3_section(sections: dict[str, Any]) -> dict[str, Any]:
    """Section `cache.l3`. Raises ConfigError unless it is all that is set."""
    cache = sections.get("cache")
    if set(sections) == {"cache"} and isinstance(cache, dict) and set(cache) == {"l3"}:
        section = cache["l3"]
        if isinstance(section, dict):
            return section
    raise ConfigError(
        "cache attach sets cache.l3 and nothing else. Give --set cache.l3.backend=NAME and what "
        "that backend needs; cache detach takes it away."
    )
