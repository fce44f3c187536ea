"""The fast protocol of uvicorn, with bounds that it lacks.

By itself it keeps headers and trailers without end, and waits for them and for bodies for ever. Of
a connection that brings a request while one is answered it reads no more, and so does not see it
close.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from raydix.runtime.server.direct_body import offer_direct_body
from raydix.runtime.server.unchunked import UnchunkedSend

MAX_HEADER_BYTES = 64 << 10
HEADER_S = 10.0
"""The time from a connection, or a later request's first byte, to the end of the headers."""
BODY_S = 120.0
"""The time from the end of the headers to that of the body: enough for 8 MiB at 70 KiB/s."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Connection: close\r\nContent-Length: 0\r\n\r\n"
)
_PER_HEADER_BYTES = len(": \r\n")
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """One connection, with one request at a time.

    It is closed once what is no body goes on beyond `MAX_HEADER_BYTES`: what comes before a body,
    and after the last chunk of one; and if headers are not complete within `HEADER_S`, or a body
    within `BODY_S`. A request that does not wait for the answer to the one before it is left out,
    and the connection closed after that answer: clients then ask again.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_in_head = False
        self._num_bytes = 0
        """The bytes since the last part of a body, or since a head or a message was complete."""
        self._num_head_bytes = 0
        """The bytes of the head that is read, its URL and headers, however they came; later
        those of trailers.
        """
        self._is_deaf = False
        """Whether a request came too early, so that neither it nor what follows is answered."""
        self._deadline: asyncio.TimerHandle | None = None
        """The deadline of headers or a body that are waited for; None: nothing is waited for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers: asyncio calls this when a client connects."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting: asyncio calls this when the connection has ended."""
        super().connection_lost(exc)
        self._end_deadline()

    def data_received(self, data: bytes) -> None:
        """Parse what a client has sent: asyncio calls this when bytes come."""
        # Not at the start of a head: empty lines may go before it, without end.
        if self.cycle is not None and self.cycle.response_complete:
            self._await_headers()
        # Some of this part may belong to what ended in it: then the bound is one part more.
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._be_too_large()

    def on_message_begin(self) -> None:
        """Note that a request begins: httptools calls this at its first byte."""
        super().on_message_begin()
        self._is_in_head = True
        self._num_head_bytes = 0
        # It may have come in one part with the end of a body that was answered before.
        if not self._is_answering:
            self._await_headers()

    def on_url(self, url: bytes) -> None:
        """Count the bytes of a URL: httptools calls this for each part."""
        self._num_head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header: httptools calls this for each one.

        Trailers are not for anybody here.
        """
        self._num_head_bytes += len(name) + len(value) + _PER_HEADER_BYTES
        if self._is_in_head and not self._is_deaf:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note that the headers are complete: httptools calls this at their end."""
        # A long head that comes at once is complete before its bytes are looked at.
        if self._num_head_bytes > MAX_HEADER_BYTES and not self._is_deaf:
            self._be_too_large()
            self._is_deaf = True
        self._is_in_head = False
        self._num_bytes = self._num_head_bytes = 0
        self._end_deadline()
        if self._is_answering:
            self.cycle.keep_alive = False
            self._is_deaf = True
        if not self._is_deaf:
            super().on_headers_complete()
            self._deadline = self.loop.call_later(BODY_S, self._be_too_late)
            if self.scope["http_version"] == "1.0":
                self.cycle.send = UnchunkedSend(self.cycle)  # type: ignore[assignment,method-assign]
            # The application begins to run only after this.
            offer_direct_body(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body: httptools calls this for each part."""
        self._num_bytes = 0
        if not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is complete: httptools calls this at its end."""
        # Long trailers that come at once are complete, too.
        if self._num_head_bytes > MAX_HEADER_BYTES and not self._is_deaf:
            self._be_too_large()
            self._is_deaf = True
        self._num_bytes = 0
        # It may have been answered before its body had come.
        self._end_deadline()
        if not self._is_deaf:
            super().on_message_complete()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_S, self._be_too_late)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _be_too_late(self) -> None:
        is_unanswered = self._is_answering and not self.cycle.response_started
        if self._is_in_head or is_unanswered:
            self.transport.write(_TOO_LATE)
        self.transport.close()

    def _be_too_large(self) -> None:
        # An answer may be under way, to this head or to the one before.
        if self._is_in_head and not self._is_answering:
            self.transport.write(_TOO_LARGE)
        self.transport.close()
