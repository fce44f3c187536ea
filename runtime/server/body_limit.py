"""Bounds the memory that one request's body may take."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raydix.runtime.server.errors import failure

MAX_BODY_BYTES = 32 << 20
"""A prompt of a million token ids has 8 MiB of JSON."""


class BodyLimit:
    """ASGI middleware: answers 413 to a body that is, or says that it is, too long."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        told = Headers(scope=scope).get("content-length", "0")
        if told.isdigit() and int(told) > self._max_bytes:
            refusal = failure(413, self._text(), "invalid_request_error")
            await refusal.response()(scope, receive, send)
            return

        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                # Of all errors FastAPI passes on this one alone.
                raise HTTPException(413, self._text())
            return message

        await self._app(scope, counted, send)

    def _text(self) -> str:
        return f"The body is too long; expected at most {self._max_bytes} bytes"
