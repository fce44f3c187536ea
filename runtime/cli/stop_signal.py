"""Waiting for SIGINT or SIGTERM."""

import asyncio
import signal


async def until_stopped() -> None:
    """Return at the first SIGINT or SIGTERM. Must run on the main thread's loop."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
