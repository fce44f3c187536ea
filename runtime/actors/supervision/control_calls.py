"""Control calls, such as `stats` and `flush`, that a process answers over links."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from raydix.errors import BadRequest, RaydixError
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.messages.control import (
    ControlCall,
    ControlErrorKind,
    ControlFailure,
    ControlResult,
    pack_values,
    unpack_values,
)

logger = logging.getLogger(__name__)

_FAREWELL_S = 2.0
"""The time that a caller has to take its answer before the process ends."""


class CallKind(Enum):
    """What becomes of a call whose caller has left."""

    ACTS = auto()
    """It is carried out."""
    WAITS = auto()
    """It is dropped."""
    ENDS = auto()
    """It is carried out, and the process ends when its caller has the answer."""


@dataclass(frozen=True, slots=True)
class Call:
    """A method that clients may call: it returns plain values, or an awaitable of them."""

    method: Callable[..., Any]
    kind: CallKind = CallKind.ACTS


class ControlCalls:
    """Answers calls of these methods, by name, each over a link of its own."""

    def __init__(
        self, calls: Mapping[str, Call], on_shut_down: Callable[[], None] | None = None
    ) -> None:
        """`on_shut_down` is called when a call that ends the process has been answered."""
        self._calls = calls
        self._on_shut_down = on_shut_down

    async def serve(self, link: Link) -> None:
        """Answer one call."""
        with contextlib.suppress(LinkClosed):
            call = await link.receive()
            if isinstance(call, ControlCall):
                await self._answer(link, call)
            else:
                logger.warning("%s sends a %s", link.hello, type(call).__name__)
        link.close()

    async def _answer(self, link: Link, call: ControlCall) -> None:
        known = self._calls.get(call.method)
        left = asyncio.create_task(_caller_left(link))
        doing = asyncio.create_task(_carry_out(known, call))
        try:
            await asyncio.wait({doing, left}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done() and known is not None and known.kind is CallKind.WAITS:
                return
            answer = await doing
            if not link.is_closed:
                link.send(answer)
                await _taken(link, left)
        finally:
            doing.cancel()
            left.cancel()
            await asyncio.gather(doing, left, return_exceptions=True)
            if known is not None and known.kind is CallKind.ENDS and self._on_shut_down is not None:
                self._on_shut_down()


async def _taken(link: Link, left: asyncio.Task[None]) -> None:
    """Wait until the caller has its answer and leaves, or takes none of it for a while."""
    while True:
        num_bytes = link.buffered_bytes
        await asyncio.wait({left}, timeout=_FAREWELL_S)
        # A tokenizer's files may take a minute to a host far away.
        if left.done() or not link.buffered_bytes < num_bytes:
            return


async def _caller_left(link: Link) -> None:
    with contextlib.suppress(LinkClosed):
        await link.receive()


async def _carry_out(known: Call | None, call: ControlCall) -> ControlResult | ControlFailure:
    """Make the call; what it raises becomes its answer."""
    try:
        if known is None:
            raise BadRequest(f"there is no call named {call.method!r}")
        result = known.method(*_arguments(call))
        value = await result if isinstance(result, Awaitable) else result
        return ControlResult(value=pack_values(value))
    except RaydixError as error:
        return ControlFailure(kind=_kind_of(error), message=str(error))
    except Exception as error:
        # Whatever the method raises, the caller must hear of it, and other callers are served.
        logger.exception("%s failed", call.method)
        return ControlFailure(kind=ControlErrorKind.OTHER, message=f"{call.method}: {error!r}")


def _arguments(call: ControlCall) -> list[Any]:
    try:
        arguments = unpack_values(call.arguments)
    except ValueError as error:
        raise BadRequest(f"{call.method}: {error}") from error
    if not isinstance(arguments, list):
        raise BadRequest(f"{call.method} was given {type(arguments).__name__}; expected a list")
    return arguments


def _kind_of(error: RaydixError) -> ControlErrorKind:
    """The nearest kind: that of the error's class, or of one that it derives from."""
    kinds = {kind.value: kind for kind in ControlErrorKind}
    return next(kinds[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in kinds)
