"""The log of a service: what its owner logs, and its engines through the owner."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from raydix.runtime.actors.supervision.log_feed import LogFeed
from raydix.runtime.messages.log_line import LogLine

_OWNER = "serve"
"""The actor of lines that no engine's actor has logged."""


class _Keeping(logging.Handler):
    """Hands what any thread of this process logs to a feed, on the feed's loop."""

    def __init__(self, feed: LogFeed, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(logging.INFO)
        self._feed = feed
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record on; an actor's names its actor."""
        line = LogLine.of(record, record.__dict__.get("actor", _OWNER))
        # The loop may have ended before the last thread that logs.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._feed.add, line)


@contextlib.contextmanager
def keeping_log(feed: LogFeed) -> Iterator[None]:
    """Keep in `feed`, which belongs to the running loop, what Raydix logs meanwhile."""
    handler = _Keeping(feed, asyncio.get_running_loop())
    logger = logging.getLogger("raydix")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
