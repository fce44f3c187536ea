"""Brings the log of an engine's actors to the process that started it."""

import asyncio
import contextlib
import logging
import sys
import threading
import time
from dataclasses import replace

from raydix.errors import RaydixError
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.log_format import format_text
from raydix.runtime.messages.log_line import LogLine
from raydix.runtime.phases import TOOK_S

logger = logging.getLogger(__name__)

_LAST_LINES_S = 1.0
"""The time that the last lines have to come in once the engine has ended."""
_RETRY_S = 0.5
_MAX_FAILURES = 60
"""The number of failures in a row after which the engine has ended. A Supervisor that has not a
moment for a handshake, on a busy host, has not ended.
"""
_LASTED_S = 10.0
"""An attempt that was longer has reached it: a quiet engine says nothing for hours."""


def deliver(line: LogLine) -> None:
    """Hand an actor's line to this process's `logging`, as if it had been logged here.

    The record has an `actor`. Where nobody has set `logging` up, warnings go to stderr.
    """
    target = logging.getLogger(line.logger)
    if not target.isEnabledFor(line.level):
        return
    if not target.hasHandlers():
        print(format_text(line), file=sys.stderr)
        return
    target.handle(
        logging.makeLogRecord(
            {
                "name": line.logger,
                "levelno": line.level,
                "levelname": logging.getLevelName(line.level),
                "created": line.time_s,
                "msecs": line.time_s % 1 * 1000,
                "msg": line.text,
                "actor": line.actor,
                "engine": line.engine,
                "node": line.node,
                "processName": line.actor,
                TOOK_S: line.took_s,
            }
        )
    )


class LogFollower:
    """Owns: a thread that fetches an engine's log for as long as the engine lives.

    And how many lines it has had.
    """

    def __init__(self, name: str, record: EngineRecord, node: str | None = None) -> None:
        """`node`: the address of the engine's node, which each line is to name with the engine,
        where it comes together with lines of others; None: it is the only one.
        """
        self._name = name
        self._record = record
        self._node = node
        self._num_lines = 0
        self._has_ended = threading.Event()
        """The engine; whoever needs it hears of that elsewhere."""
        self._thread = threading.Thread(target=self._run, name=f"log-of-{name}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait, a moment at most, for the last lines of an engine that has ended."""
        self._has_ended.set()
        self._thread.join(_LAST_LINES_S)

    def _run(self) -> None:
        num_failures = 0
        while num_failures < _MAX_FAILURES:
            began_s = time.monotonic()
            with contextlib.suppress(RaydixError):
                asyncio.run(self._follow())
            if self._has_ended.wait(_RETRY_S):
                return
            has_lasted = time.monotonic() - began_s > _LASTED_S
            num_failures = 0 if has_lasted else num_failures + 1

    async def _follow(self) -> None:
        while True:
            number = self._num_lines
            answer = await call_supervisor(self._name, self._record, "next_lines", number)
            if answer["first"] > number:
                logger.warning(
                    "%d lines of the log of engine %s were dropped, as they came too fast",
                    answer["first"] - number,
                    self._name,
                )
            for values in answer["lines"]:
                line = LogLine.from_values(values)
                if self._node is not None:
                    line = replace(line, engine=self._name, node=self._node)
                deliver(line)
            self._num_lines = answer["first"] + len(answer["lines"])
