"""Server-sent events as an answer whose status waits for the first event."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from raydix.errors import RaydixError
from raydix.runtime.api.open_requests import OnNews, RequestGroup, Taken
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.server.connection import disconnected
from raydix.runtime.server.direct_body import DirectBody, direct_body_of
from raydix.runtime.server.errors import HttpFailure, failure_of
from raydix.runtime.server.wire.base import NamedEvent

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_LINE_ENDS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}
"""Escapes of the line ends that JSON leaves as they are; it escapes all others by itself."""
DONE = b"data: [DONE]\n\n"


def data_event(value: BaseModel) -> bytes:
    """An event that is known by what it holds."""
    return b"data: " + in_one_line(value.model_dump_json()).encode() + b"\n\n"


def in_one_line(json_text: str) -> str:
    """The same JSON in one line, even for clients that split lines as Python does."""
    return json_text if json_text.isascii() else json_text.translate(_LINE_ENDS)


def named_events(events: Iterable[NamedEvent]) -> bytes:
    """Events, each under its own name."""
    named = [b"event: " + each.type.encode() + b"\n" + data_event(each) for each in events]
    return b"".join(named)


def data_failure(failed: HttpFailure) -> bytes:
    """An error within a stream of OpenAI's whose events have no names."""
    return b"data: " + failed.body("") + b"\n\n"


class EventWriter(Protocol):
    """How a route writes one stream. It is given each output once, those of a choice in order."""

    def plain(self, index: int, output: RequestOutput) -> bytes | None:
        """The event of an output that needs nothing more than text; None: ask for `event`."""
        ...

    async def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of any other output."""
        ...

    def closing(self) -> bytes:
        """The events behind the last output."""
        ...

    def failure(self, failed: HttpFailure) -> bytes:
        """The event of an error after the first event."""
        ...


class EventStream(Response):
    """Sends events as they come, and closes their source when the client goes away.

    An error before the first event becomes an answer with its own status; a later one is told by
    an event. Most events have plain text, and are written where the engine's news comes in, without
    a task. The task of the request sends the others; it also takes over while the client does not
    read, when news waits where it is merged.

    Owns: what its task has to send, and whether it is asleep.
    """

    def __init__(
        self,
        open_choices: Callable[[OnNews], Awaitable[RequestGroup]],
        writer: EventWriter,
        headers: Mapping[str, str],
    ) -> None:
        """`headers`: more of the answer, which are there once the choices are open."""
        super().__init__()
        self._more_headers = headers
        self._open_choices = open_choices
        self._writer = writer

        self._group: RequestGroup | None = None
        self._direct: DirectBody | None = None
        self._roused = asyncio.Event()
        self._is_asleep = False
        self._left: list[tuple[int, Taken]] = []
        """The news that was taken as it came in and could not be written there, by choice."""
        self._bug: Exception | None = None

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Tell no length of the body, where Starlette would tell that it is empty."""
        self.raw_headers = list(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI asks of an application."""
        self._direct = direct_body_of(scope)
        leaving = asyncio.ensure_future(disconnected(receive))
        leaving.add_done_callback(lambda _: self._rouse())
        try:
            with await self._open_choices(self._on_news) as self._group:
                await self._deliver(self._group, leaving, scope, receive, send)
        except RaydixError as error:
            # Only before the first event: the engine refused the request here.
            await failure_of(error).response(scope["path"])(scope, receive, send)
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving

    async def _deliver(
        self,
        group: RequestGroup,
        leaving: "asyncio.Future[None]",
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send what is not written directly, until all is over or the client has left."""
        is_begun = False
        while not leaving.done():
            part, failure = await self._written(await self._next(group))
            is_last = failure is not None or group.is_over
            if not (part or is_last):
                continue

            if not is_begun:
                if failure is not None and not part:
                    raise failure
                is_begun = True
                more = self._more_headers.items()
                told = [(name.encode(), value.encode("latin-1")) for name, value in more]
                headers = [*self.raw_headers, *told]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            if failure is not None:
                part += self._writer.failure(failure_of(failure))
            elif is_last:
                part += self._writer.closing()
            await send({"type": "http.response.body", "body": part, "more_body": not is_last})
            if is_last:
                return

    async def _next(self, group: RequestGroup) -> list[tuple[int, Taken]]:
        """News for the task, which sleeps while there is none; none, too, if it was woken."""
        if not self._left:
            self._left = group.take()
        if not self._left:
            self._roused.clear()
            self._is_asleep = True
            await self._roused.wait()
            if self._bug is not None:
                raise self._bug
            self._left = self._left or group.take()
        news, self._left = self._left, []
        return news

    async def _written(self, news: list[tuple[int, Taken]]) -> tuple[bytes, RaydixError | None]:
        """The events of news up to the first failure, and that."""
        part = b""
        for index, taken in news:
            if isinstance(taken, RaydixError):
                return part, taken
            plain = self._writer.plain(index, taken)
            try:
                part += await self._writer.event(index, taken) if plain is None else plain
            except RaydixError as error:
                # An event may take asking the engine, which may be gone by now.
                return part, error
        return part, None

    def _on_news(self) -> None:
        # What the task is about to send comes first.
        if self._is_asleep and self._direct is not None and self._direct.is_ready:
            try:
                self._pass_on(self._direct)
            except Exception as error:  # noqa: BLE001 - raised by the task, which answers for it
                self._bug = error
                self._rouse()
        else:
            self._rouse()

    def _pass_on(self, direct: DirectBody) -> None:
        """Write plain events up to the first other one, which is left to the task."""
        assert self._group is not None, "an answer begins when the choices are open"
        part = b""
        news = self._group.take()
        for number, (index, taken) in enumerate(news):
            event = None if isinstance(taken, RaydixError) else self._writer.plain(index, taken)
            if event is None:
                self._left = news[number:]
                break
            part += event
        if part:
            direct.write(part)
        if self._left or self._group.is_over:
            self._rouse()

    def _rouse(self) -> None:
        self._is_asleep = False
        self._roused.set()
