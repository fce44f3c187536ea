"""Answers to HTTP/1.0, which knows no chunks: without a told length they end the connection."""

import weakref
from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class UnchunkedSend:
    """Takes the place of a cycle's `send`. uvicorn itself would write chunks.

    Owns: whether the length of the answer was told.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        # The cycle holds this: a circle would keep each request until the collector comes by.
        self._cycle = weakref.ref(cycle)
        self._has_length = True

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """Serve one request, as ASGI asks of an application."""
        cycle = self._cycle()
        assert cycle is not None, "it is answering"
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            self._has_length = b"content-length" in names
            if not self._has_length:
                cycle.chunked_encoding = False
        elif not self._has_length:
            # Each part is checked against what is left of the whole.
            cycle.expected_content_length = len(message.get("body", b""))
        await RequestResponseCycle.send(cycle, message)  # type: ignore[arg-type]
