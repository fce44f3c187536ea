"""The body of an answer past ASGI, for the parts of a stream: one write, and no task.

Only our own listener offers it. Ray Serve has a listener of its own, to which parts go by ASGI.
"""

import weakref
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

DIRECT_BODY = "raydix.direct_body"
"""The name of the direct body among the extensions of an ASGI scope."""


class DirectBody:
    """Writes parts of one answer that ASGI has begun and will end."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        # Its scope holds this: a circle would keep each request until the collector comes by.
        self._cycle = weakref.ref(cycle)

    @property
    def is_ready(self) -> bool:
        """Whether a part may be written now: the answer has begun, and its client reads."""
        cycle = self._cycle()
        return (
            cycle is not None
            and cycle.chunked_encoding is True
            and not cycle.flow.write_paused
            and not cycle.disconnected
            and not cycle.response_complete
        )

    def write(self, part: bytes) -> None:
        """Send a part; it must not be empty, which would be the end."""
        cycle = self._cycle()
        assert cycle is not None, "it was ready"
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))


def offer_direct_body(cycle: RequestResponseCycle) -> None:
    """Let the application find it in the request's scope."""
    extensions: dict[str, Any] = dict(cycle.scope.get("extensions") or {})
    extensions[DIRECT_BODY] = DirectBody(cycle)
    cycle.scope["extensions"] = extensions


def direct_body_of(scope: Scope) -> DirectBody | None:
    """The direct body that the listener offers for this request."""
    extensions = scope.get("extensions") or {}
    return extensions.get(DIRECT_BODY)
