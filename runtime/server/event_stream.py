"""Server-sent events as an answer whose status waits for the first event."""

import contextlib
from collections.abc import AsyncGenerator, Callable

from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from raydix.errors import RaydixError
from raydix.runtime.server.connection import ClientGone, while_connected
from raydix.runtime.server.errors import HttpFailure, failure_of

DONE = b"data: [DONE]\n\n"


def data_event(value: BaseModel) -> bytes:
    """An event that is known by what it holds."""
    return b"data: " + value.model_dump_json().encode() + b"\n\n"


def named_event(name: str, value: BaseModel) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\n" + data_event(value)


def data_failure(failed: HttpFailure) -> bytes:
    """An error within a stream whose events have no names."""
    return b"data: " + failed.body() + b"\n\n"


class EventStream(Response):
    """Sends events as they come, and closes their source when the client goes away.

    An error before the first event becomes an answer with its own status; a later one is told by
    an event.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        failure_event: Callable[[HttpFailure], bytes] = data_failure,
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._events = events
        self._failure_event = failure_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        with contextlib.suppress(ClientGone):
            async with contextlib.aclosing(self._events):
                await while_connected(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._events)
        except RaydixError as error:
            await failure_of(error).response()(scope, receive, send)
            return

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_part(send, first)
        try:
            async for event in self._events:
                await _send_part(send, event)
        except RaydixError as error:
            await _send_part(send, self._failure_event(failure_of(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})
