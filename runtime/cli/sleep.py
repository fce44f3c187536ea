"""`raydix sleep`, `raydix wake` and `raydix switch`: engines that take turns on the same GPUs."""

import asyncio
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
    scheduler.max_asleep_wait_s.
    """
    print(asyncio.run(_sleep(name, weights)))


def wake(name: Engine) -> None:
    """Have an engine that sleeps take its memory again, and go on with requests."""
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
    slept = await _sleep(asleep, True)
    try:
        return [slept, await _wake(awake)]
    except RaydixError as error:
        if has_slept:
            raise EngineAsleep(
                f"{awake} does not wake; {asleep} sleeps as before. {error}"
            ) from error
        await _wake(asleep)
        raise EngineAsleep(f"{awake} does not wake, so {asleep} is awake again. {error}") from error


async def _sleep(name: str, weights: bool) -> str:
    slept = await _call(name, "fall_asleep", weights)
    told = (
        f"engine {name} sleeps; of {format_bytes(slept['held_bytes'])} of pages and weights its "
        f"ranks hold {format_bytes(slept['left_bytes'])}"
    )
    lost = slept["lost_pages"]
    return f"{told}; L2 had no room for {lost} pages, which are lost" if lost else told


async def _wake(name: str) -> str:
    woken = await _call(name, "wake")
    return f"engine {name} is awake after {woken['seconds']:.1f} s"


async def _call(name: str, method: str, *arguments: Any) -> Any:
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
    return await call_supervisor(name, record, method, *arguments)
