"""What several that are asked at once answer, without the wait for one that hangs."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from raydix.errors import EngineDead

T = TypeVar("T")


async def first_outcomes(
    asked: Sequence[Coroutine[Any, Any, T]], grace_s: float
) -> list[T | BaseException]:
    """What each gives or raises, in their order.

    Once one of them has given something, the others may take `grace_s` longer; those that have not
    ended by then are cancelled, and count as EngineDead.
    """
    tasks = [asyncio.ensure_future(each) for each in asked]
    try:
        pending = set(tasks)
        while pending and not any(_has_given(each) for each in tasks):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if pending:
            await asyncio.wait(pending, timeout=grace_s)
        return [_outcome(each) for each in tasks]
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _has_given(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _outcome(task: asyncio.Task[T]) -> T | BaseException:
    if not task.done():
        return EngineDead("it has not answered yet")
    return task.exception() or task.result()


def raise_unless_some_are_there(engines: Sequence[str], outcomes: Sequence[Any]) -> None:
    """Raise what any outcome is but EngineDead; and EngineDead, if all of them are that."""
    errors = [each for each in outcomes if isinstance(each, BaseException)]
    for error in errors:
        if not isinstance(error, EngineDead):
            raise error
    if len(errors) < len(outcomes):
        return
    if len(errors) == 1:
        raise errors[0]
    names = ", ".join(engines)
    raise EngineDead(f"none of the engines {names} is there. Of the first: {errors[0]}")
