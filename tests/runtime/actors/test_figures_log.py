import asyncio
import logging

import pytest

from raydix.runtime.actors.figures_log import FiguresLog, News
from raydix.runtime.metrics import Figures


class Countdown:
    """Says each figure that is above zero."""

    def tell(self, figures: Figures, now_s: float) -> News | None:
        return (logging.WARNING, f"{figures['left']} left") if figures["left"] else None


async def test_what_the_teller_says_is_logged_at_its_level_until_the_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left, is_over = [2, 0, 1], asyncio.Event()

    def figures() -> Figures:
        if len(left) == 1:
            is_over.set()
        return {"left": left.pop(0) if left else 0}

    log = FiguresLog(Countdown(), interval_s=0.0)
    await log.stop()
    log.start(figures)
    await asyncio.wait_for(is_over.wait(), 10)
    await log.stop()
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [("WARNING", "2 left"), ("WARNING", "1 left")]
