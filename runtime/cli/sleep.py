"""`raydix sleep`, `raydix wake` and `raydix switch`: engines that take turns on the same GPUs."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from raydix.errors import BadRequest, EngineAsleep, EngineDead, RaydixError
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.scheduler.phase import Phase

Engine = Annotated[str, typer.Argument(help="An engine of this host, as `raydix status` names it.")]
WithWeights = Annotated[
    bool,
    typer.Option("--weights", help="The weights too, which the node's memory keeps meanwhile."),
]


def sleep(name: Engine, weights: WithWeights = False) -> None:
    """Give the memory of an engine's KV pages back; the engine goes on, asleep.

    Requests that have begun end first, or after scheduler.max_drain_s pause until the wake, and L2
    gets what it lacks of L1. Later ones wait for `raydix wake`, and fail after
    scheduler.max_asleep_wait_s. Ctrl-C ends the wait alone: the engine goes on falling asleep.
    """
    print(asyncio.run(_sleep(name, weights)))


def wake(name: Engine) -> None:
    """Have an engine that sleeps take its memory again, and go on with requests.

    Ctrl-C ends the wait alone: the engine goes on waking.
    """
    print(asyncio.run(_wake(name)))


def switch(
    asleep: Annotated[str, typer.Argument(metavar="A", help="The engine that is to sleep.")],
    awake: Annotated[str, typer.Argument(metavar="B", help="The engine that is to wake.")],
) -> None:
    """Put A to sleep, its weights too, and wake B in its place.

    If B cannot wake, A is woken again, unless it slept before.
    """
    for told in asyncio.run(_switch(asleep, awake)):
        print(told)


async def _switch(asleep: str, awake: str) -> list[str]:
    if asleep == awake:
        raise BadRequest(f"A and B are both {asleep}; expected two engines, which take turns.")
    # Before A is drained for nothing.
    await _call(awake, "phase")
    has_slept = await _call(asleep, "phase") == Phase.ASLEEP.value
    rest = f"{awake} is not woken: raydix switch {asleep} {awake} goes on from there"
    slept = await _sleep(asleep, True, rest)
    try:
        return [slept, await _wake(awake, f"{asleep} sleeps")]
    except RaydixError as error:
        if has_slept:
            raise EngineAsleep(
                f"{awake} does not wake; {asleep} sleeps as before. {error}"
            ) from error
        await _wake(asleep, f"{awake} does not wake: {error}")
        raise EngineAsleep(f"{awake} does not wake, so {asleep} is awake again. {error}") from error


async def _sleep(name: str, weights: bool, rest: str | None = None) -> str:
    """Put an engine to sleep; `rest`: what else is to be said if Ctrl-C ends the wait."""
    goes_on = (
        f"engine {name} goes on falling asleep, as raydix status shows; raydix wake {name} calls "
        "that off"
    )
    slept = await _call(name, "fall_asleep", weights, goes_on=_joined(goes_on, rest))
    return words_of_sleep(name, slept)


async def _wake(name: str, rest: str | None = None) -> str:
    """Wake an engine; `rest`: what else is to be said if Ctrl-C ends the wait."""
    goes_on = f"engine {name} goes on waking, as raydix status shows"
    woken = await _call(name, "wake", goes_on=_joined(goes_on, rest))
    return words_of_wake(name, Phase(woken["found"]), woken["seconds"])


def words_of_sleep(name: str, slept: Mapping[str, Any]) -> str:
    """What has come of an order to sleep."""
    match Phase(slept["found"]):
        case Phase.ASLEEP:
            told = f"engine {name} slept already"
        case Phase.AWAKE | Phase.WAKING:
            told = f"engine {name} sleeps"
        case Phase.DRAINING | Phase.PARKING | Phase.BACKING_UP | Phase.GIVING_BACK:
            told = f"engine {name} sleeps, as somebody had asked before"
    told += (
        f"; of {format_bytes(slept['held_bytes'])} of pages and weights its ranks hold "
        f"{format_bytes(slept['left_bytes'])}"
    )
    lost = slept["lost_pages"]
    return f"{told}; L2 had no room for {lost} pages, which are lost" if lost else told


def words_of_wake(name: str, found: Phase, seconds: float) -> str:
    """What has come of an order to wake that has `found` the engine in this phase."""
    match found:
        case Phase.AWAKE:
            return f"engine {name} was awake already"
        case Phase.DRAINING | Phase.PARKING | Phase.BACKING_UP:
            return f"engine {name} is awake: it was falling asleep, which is called off"
        case Phase.GIVING_BACK | Phase.ASLEEP:
            return f"engine {name} is awake after {seconds:.1f} s"
        case Phase.WAKING:
            return f"engine {name} is awake, as somebody had asked before, {seconds:.1f} s later"


def _joined(*told: str | None) -> str:
    return "; ".join(each for each in told if each is not None)


async def _call(name: str, method: str, *arguments: Any, goes_on: str | None = None) -> Any:
    """Make a control call; `goes_on`: what is said if Ctrl-C ends the wait for what it does."""
    from raydix.runtime.actors.bootstrap.control_client import call_supervisor
    from raydix.runtime.actors.engine_record import find_record, running_names
    from raydix.runtime.actors.service.running import look_at_service

    record = find_record(name)
    if record is None:
        known = ", ".join(running_names()) or "none"
        raise EngineDead(f"{name} is no engine of this host. There are: {known}.")
    if (service := await look_at_service(name)) is not None:
        engines = ", ".join(each["name"] for each in service["engines"]) or "none"
        raise BadRequest(
            f"{name} is a service; expected one of its engines ({engines}). AsyncService.sleep() "
            "and wake() are for all of them."
        )
    try:
        return await call_supervisor(name, record, method, *arguments)
    except asyncio.CancelledError:
        if goes_on is not None:
            print(goes_on, file=sys.stderr)
        raise
