"""What a route knows of one model: its engine, and how this server calls it."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from raydix.runtime.server.engine import ServedEngine
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.wire.errors import ErrorAnswer

REFUSALS: dict[int | str, dict[str, object]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 408, 429, 503)
}
"""The schema of errors that any route may answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model behind one server."""

    engine: ServedEngine
    model_name: str
    started_at: int
    """The start of the server in seconds since 1970, told by `/v1/models` as `created`."""
    wall_clock: Callable[[], float] = time.time

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self.wall_clock())


def caller_of(request: Request) -> Caller:
    """Who sent a request, as `KeyCheck` found."""
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def new_request_id() -> str:
    """A request id: no client chooses its own, which might be another's."""
    return uuid.uuid4().hex
