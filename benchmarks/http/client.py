"""A client of plain HTTP over sockets, so that no client library is measured."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

_READ_BYTES = 1 << 16


async def stream_parts(
    port: int, body: Mapping[str, Any], path: str = "/v1/completions"
) -> AsyncGenerator[bytes, None]:
    """An answer as it comes, over a connection of its own: one event or several, or part of one.

    Raises RuntimeError unless its status is 200.
    """
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (path.encode(), len(content), content)
    )
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{head.decode()}{(await reader.read()).decode()}")
        while part := await reader.read(_READ_BYTES):
            yield part
    finally:
        writer.close()
