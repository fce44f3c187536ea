"""Every link test runs on asyncio's own loop and on uvloop, which Ray uses where it finds it."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that pytest-asyncio runs each test on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
