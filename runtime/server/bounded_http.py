"""uvicorn's fast protocol, which by itself would keep a header without end."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from raydix.runtime.server.direct_body import offer_direct_body

MAX_HEADER_BYTES = 64 << 10
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Connection: close\r\nContent-Length: 0\r\n\r\n"
)


class BoundedHttp(HttpToolsProtocol):
    """One connection, closed once what comes before a body goes on beyond `MAX_HEADER_BYTES`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_in_head = False
        self._num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        if self._is_in_head:
            # All of this part may belong to the request before it: then the bound is one part more.
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        """See httptools."""
        super().on_message_begin()
        self._is_in_head = True
        self._num_head_bytes = 0

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._is_in_head = False
        super().on_headers_complete()
        # The application begins to run only after this.
        offer_direct_body(self.cycle)
