"""Waiting for SIGINT or SIGTERM."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_stopped(ended: Coroutine[Any, Any, None] | None = None) -> None:
    """Return at the first SIGINT or SIGTERM. Must run on the main thread's loop.

    `ended`: what may end before, such as an engine; then this returns or raises as that does.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)

    signalled = asyncio.create_task(stopped.wait())
    ending = signalled if ended is None else asyncio.create_task(ended)
    try:
        await asyncio.wait({signalled, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            ending.result()
    finally:
        for task in (signalled, ending):
            task.cancel()
        await asyncio.gather(signalled, ending, return_exceptions=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
