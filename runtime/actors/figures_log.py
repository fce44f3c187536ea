"""Lines of the log that an actor's figures are worth, as they change."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

from raydix.runtime.metrics import Figures

logger = logging.getLogger(__name__)

News = tuple[int, str]
"""A level, as in `logging`, and the message."""


class Teller(Protocol):
    """Looks at figures again and again, and decides what is worth a line."""

    def tell(self, figures: Figures, now_s: float) -> News | None:
        """What is new since the last time; None if that is nothing to speak of."""


class FiguresLog:
    """Owns: a task that shows a teller an actor's figures, and logs what it says."""

    def __init__(self, teller: Teller, interval_s: float) -> None:
        self._teller = teller
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self, figures: Callable[[], Figures]) -> None:
        """Look every `interval_s` from now on, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(figures))

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, figures: Callable[[], Figures]) -> None:
        while True:
            news = self._teller.tell(figures(), time.monotonic())
            if news is not None:
                level, text = news
                logger.log(level, "%s", text)
            await asyncio.sleep(self._interval_s)
