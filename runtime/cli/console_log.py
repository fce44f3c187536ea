"""The log of a verb that runs for long: of this process and of the engine's actors."""

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from raydix.runtime.actors.log_format import FormatLine
from raydix.runtime.messages.log_line import LogLine

_LEVELS = {"raydix": logging.INFO, "uvicorn": logging.WARNING, "asyncio": logging.WARNING}
"""The lowest level that is shown of each logger."""
_MAX_WAITING = 4000
_LAST_LINES_S = 1.0
"""The time at the end for a console that does not take what is written to it."""


class ConsoleLog(logging.Handler):
    """Writes what is logged, on a thread: who logs never waits for the console.

    Past a number of lines that the console has not taken, further ones are dropped and counted.
    """

    def __init__(self, format_line: FormatLine, actor: str, stream: TextIO) -> None:
        """`actor`: whose lines those are that this process logs itself."""
        super().__init__(logging.INFO)
        self._format_line = format_line
        self._actor = actor
        self._stream = stream
        self._waiting: queue.Queue[LogLine | None] = queue.Queue(_MAX_WAITING)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="console-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; an actor's names its actor."""
        actor = record.__dict__.get("actor", self._actor)
        try:
            self._waiting.put_nowait(LogLine.of(record, actor))
        except queue.Full:
            self._num_dropped += 1

    def finish(self) -> None:
        """Write what waits, for a second at most, and no more after that.

        Not `close`: whoever sets `logging` up by `dictConfig` closes all handlers that there are.
        """
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_LAST_LINES_S)
        self._thread.join(_LAST_LINES_S)

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            self._write(line)
            if dropped := self._take_dropped():
                self._write(self._loss(dropped))

    def _take_dropped(self) -> int:
        # `emit` runs under this lock, too.
        self.acquire()
        try:
            dropped, self._num_dropped = self._num_dropped, 0
        finally:
            self.release()
        return dropped

    def _write(self, line: LogLine) -> None:
        # A closed console is no reason to stop serving.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(self._format_line(line) + "\n")
            self._stream.flush()

    def _loss(self, num_lines: int) -> LogLine:
        return LogLine(
            time_s=time.time(),
            level=logging.WARNING,
            actor=self._actor,
            logger=__name__,
            text=f"{num_lines} lines were dropped, as the console did not take them",
        )


@contextlib.contextmanager
def logging_to_console(
    format_line: FormatLine, actor: str, stream: TextIO | None = None
) -> Iterator[None]:
    """Show the log of this process, and of engines that it starts, meanwhile.

    On standard output unless another stream is given.
    """
    log = ConsoleLog(format_line, actor, stream or sys.stdout)
    former_levels = {name: logging.getLogger(name).level for name in _LEVELS}
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).addHandler(log)
    try:
        yield
    finally:
        for name, level in former_levels.items():
            logging.getLogger(name).removeHandler(log)
            logging.getLogger(name).setLevel(level)
        log.finish()
