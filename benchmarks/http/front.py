"""An HTTP server of its own process for a running engine: `python -m benchmarks.http.front NAME`.

Prints its port, and serves until its standard input ends.
"""

import asyncio
import sys

import uvloop

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.garbage import spare_long_lived_objects
from raydix.runtime.server.app import build_app
from raydix.runtime.server.listener import listening


async def serve(engine_name: str) -> None:
    """Serve until nobody wants it any more."""
    async with await AsyncLLM.connect(engine_name) as engine:
        app = build_app({engine_name: engine}, None)
        spare_long_lived_objects()
        async with listening(app, TcpAddress("127.0.0.1", 0), 1.0) as url:
            print(url.rpartition(":")[2], flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
