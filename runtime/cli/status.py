"""`raydix status` and `raydix stop`: what of this user runs on this host, and how it ends."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from raydix.errors import BadRequest, EngineDead
from raydix.runtime.cli.options import AsJson
from raydix.runtime.cli.output import print_json
from raydix.runtime.cli.service_table import service_table
from raydix.runtime.config.capacity import format_bytes

if TYPE_CHECKING:
    from raydix.runtime.actors.engine_record import EngineRecord
    from raydix.runtime.actors.l2_record import L2Record

_LET_GO_S = 20.0
"""The time for the processes of a stopped engine to end, and for L2 to notice."""
_LOOK_S = 0.1
_LINE = 240
"""Characters of a line of a table at most."""

Target = Annotated[
    str, typer.Argument(help="An engine, a service, or an L2, as `raydix status` names it.")
]
WithCache = Annotated[
    bool,
    typer.Option(
        "--cache", help="Also the L2s of this host that it uses, unless others use them, too."
    ),
]


def status(as_json: AsJson = False) -> None:
    """Say which engines, services and L2s of yours this host has.

    A service is owned here, and its engines may be on any node. An L2 belongs to its node: it
    outlives engines by cache.l2.keep_s.
    """
    from raydix.runtime.actors.service.running import running_services

    services = asyncio.run(running_services())
    engines, l2s = asyncio.run(_look(services))
    if as_json:
        print_json({"services": list(services.values()), "engines": engines, "l2s": l2s})
        return
    # A narrow terminal wraps lines of the table; cut cells would say nothing.
    console = Console(width=_LINE)
    for each in services.values():
        _print_service(console, each)
    if not services and not engines and not l2s:
        console.print("No engine of yours runs on this host, and no L2 is kept.")
    in_services = {each["name"] for service in services.values() for each in service["engines"]}
    if single := [each for each in engines if each["name"] not in in_services]:
        console.print(_engine_table(single))
    for each in engines:
        if each["problem"] is not None:
            told = f"{each['name']}: {each['problem']}"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
    if any(each["problem"] is None for each in l2s):
        console.print(_l2_table([each for each in l2s if each["problem"] is None]))
    for each in l2s:
        if each["problem"] is not None:
            told = f"{each['name']} is there and does not answer: {each['problem']}"
            console.print(told, markup=False, highlight=False, soft_wrap=True)


def stop(name: Target, cache: WithCache = False) -> None:
    """Stop an engine or a service as Ctrl-C does, or end an L2 that nobody uses.

    A service ends with all its engines, on whatever nodes they are, once they have drained; a later
    version of it, if an upgrade is under way, goes on. The L2 of an engine stays for
    cache.l2.keep_s, for the next one, unless --cache ends it. That of an engine for which raydix
    serve has started a private Ray cluster ends with it, as the cluster does.
    """
    print(asyncio.run(_stop(name, cache)))


async def _stop(name: str, cache: bool) -> str:
    from raydix.runtime.actors.bootstrap.control_client import call_supervisor
    from raydix.runtime.actors.engine_record import find_record, running_names
    from raydix.runtime.actors.l2_record import l2s_of
    from raydix.runtime.actors.service.names import number_in
    from raydix.runtime.actors.service.running import running_services

    l2s = {record.name: record for record in l2s_of()}
    if name in l2s:
        return await _end_l2(l2s[name], patience_s=0.0)
    record = find_record(name)
    if record is None:
        known = ", ".join([*running_names(), *l2s]) or "none"
        raise EngineDead(f"{name} is no engine, service or L2 of this host. There are: {known}.")

    def is_of_it(user: str) -> bool:
        return user == name or number_in(name, user) is not None

    described = {each.name: await _describe(each) for each in l2s.values()}
    used = [each for each in l2s.values() if any(map(is_of_it, described[each.name]["engines"]))]
    kind = "service" if name in await running_services() else "engine"
    private = None if kind == "service" else await _private_cluster(name, record)
    try:
        await call_supervisor(name, record, "shutdown")
    except asyncio.CancelledError:
        print(f"{kind} {name} goes on stopping, as raydix status shows", file=sys.stderr)
        raise
    if private is not None and await private.has_ended(_LET_GO_S):
        its = "private cluster and L2" if used else "private cluster"
        return f"{kind} {name} is stopped, and its {its} with it"
    told = [f"{kind} {name} is stopped"]
    kept: list[str] = []
    for each in used:
        users = (await _describe(each))["engines"]
        others = [user for user in users if not is_of_it(user)]
        if cache and not others:
            told.append(await _end_l2(each, patience_s=_LET_GO_S))
        elif others:
            told.append(f"its L2, {each.name}, goes on, as {', '.join(others)} uses it")
        else:
            kept.append(each.name)
    if kept:
        its = (
            f"its L2, {kept[0]}, stays"
            if len(kept) == 1
            else f"its L2s, {' and '.join(kept)}, stay"
        )
        told.append(f"{its} for a while, as raydix status shows")
    if private is not None:
        told.append(
            f"its private cluster ends with process {private.owner_pid}, which has started it"
        )
    return "; ".join(told)


class _PrivateCluster:
    """The private cluster of an engine, from before the engine is stopped."""

    def __init__(self, node_pid: int, owner_pid: int) -> None:
        """Raises ProcessLookupError if it has ended."""
        from raydix.runtime.actors.process import ProcessHandle

        self.owner_pid = owner_pid
        self._node = ProcessHandle(node_pid)

    async def has_ended(self, patience_s: float) -> bool:
        """Whether it ends in this time, as it does where its owner waits for the engine's end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._node.wait()
                return True
        return False


async def _private_cluster(name: str, record: "EngineRecord") -> _PrivateCluster | None:
    from raydix.runtime.actors.bootstrap.control_client import ask_supervisor

    with contextlib.suppress(ProcessLookupError):
        told: dict[str, int] | None = await ask_supervisor(name, record, "private_cluster")
        return None if told is None else _PrivateCluster(**told)
    return None


async def _phase_of(name: str, record: "EngineRecord") -> str | None:
    """Whether an engine that answers is awake; None: its Scheduler is being restarted."""
    from raydix.runtime.actors.bootstrap.control_client import ask_supervisor

    phase: str | None = await ask_supervisor(name, record, "phase")
    return phase


async def _end_l2(record: "L2Record", patience_s: float) -> str:
    """End an L2. Raises BadRequest if engines use it, and go on to do so for `patience_s`."""
    give_up_s = time.monotonic() + patience_s
    while not await _ends(record):
        if time.monotonic() > give_up_s:
            users = ", ".join((await _describe(record))["engines"])
            raise BadRequest(f"{record.name} is used by {users}. Stop these first.")
        await asyncio.sleep(_LOOK_S)
    return f"{record.name} is ended"


async def _ends(record: "L2Record") -> bool:
    """Have an L2 end if nobody uses it, and say whether nobody does."""
    from raydix.runtime.actors.bootstrap.control_client import call_l2
    from raydix.runtime.actors.l2_record import l2s_of

    try:
        return bool(await call_l2(record, "end"))
    except EngineDead:
        # One that holds little ends before it has answered: it has its name no more.
        if record.name in {each.name for each in l2s_of()}:
            raise
        return True


async def _look(
    services: Collection[str] = (),
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from raydix.runtime.actors.bootstrap.control_client import ask_supervisor
    from raydix.runtime.actors.engine_record import find_record, running_names
    from raydix.runtime.actors.l2_record import l2s_of
    from raydix.runtime.actors.links.link import LinkRefused, LinkSilent

    engines = []
    for name in running_names():
        # A service is reached by other calls than an engine, and refuses these.
        if name in services:
            continue
        record = find_record(name)
        try:
            facts = None if record is None else await ask_supervisor(name, record, "client_facts")
            phase = None if record is None else await _phase_of(name, record)
        except BadRequest:
            # So does a service that has come since.
            continue
        except EngineDead as error:
            # One that starts or ends has nobody who listens.
            is_there = isinstance(error.__cause__, LinkRefused | LinkSilent)
            facts, phase, problem = None, None, str(error) if is_there else None
        else:
            problem = None
        model = None if facts is None else facts["model_path"]
        # One that sleeps, or is on its way there, lets requests wait.
        serves = facts is not None and phase in (None, "awake")
        engines.append(
            {
                "name": name,
                "serves": serves,
                "phase": phase,
                "model_path": model,
                "problem": problem,
            }
        )

    described = [await _describe(each) for each in l2s_of()]
    # One that ended meanwhile has its name no more.
    names = {each.name for each in l2s_of()}
    return engines, [each for each in described if each["name"] in names]


async def _describe(record: "L2Record") -> dict[str, Any]:
    """What an L2 says of itself; for one that does not answer us, under `problem`, why.

    Of that neither size nor users are known.
    """
    from raydix.runtime.actors.bootstrap.control_client import call_l2

    try:
        described: dict[str, Any] = await call_l2(record, "describe")
    except EngineDead as error:
        problem = (
            f"{error.__cause__ or error}; expected an L2 of this checkout. Stop it by the raydix "
            f"that made it, or end its process {record.pid}."
        )
        unknown = dict.fromkeys(("size_bytes", "ready_bytes", "ends_in_s", "model_path"))
        return {"name": record.name, "engines": [], **unknown, "problem": problem}
    return described | {"problem": None}


def _print_service(console: Console, service: dict[str, Any]) -> None:
    doing = "gives way to a later version" if service["is_giving_way"] else "goes on"
    wanted = f"{service['wanted']} engine{'' if service['wanted'] == 1 else 's'}"
    console.print(f"service {service['service']}: {wanted} wanted; it {doing}")
    console.print(service_table(service["engines"]))
    for each in service["waiting"]:
        told = f"{each['engines']} more wait for {each['for']}."
        console.print(told, markup=False, highlight=False, soft_wrap=True)


def _engine_table(engines: list[dict[str, Any]]) -> Table:
    table = Table("engine", "state", "model", box=None, title_justify="left")
    for each in engines:
        state = "serves" if each["serves"] else each["phase"] or "starts or ends"
        if each["problem"] is not None:
            state = "does not answer this raydix"
        table.add_row(each["name"], state, each["model_path"] or "")
    return table


def _l2_table(l2s: list[dict[str, Any]]) -> Table:
    table = Table("L2", "size", "holds", "used by", "stays", "model", box=None)
    for each in l2s:
        ends_in_s = each["ends_in_s"]
        stays = "while used" if ends_in_s is None else f"{ends_in_s:,.0f} s more"
        sizes = (format_bytes(each["size_bytes"]), format_bytes(each["ready_bytes"]))
        users = ", ".join(each["engines"]) or "nobody"
        table.add_row(each["name"], *sizes, users, stays, each["model_path"])
    return table
