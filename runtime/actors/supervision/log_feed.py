"""The latest lines of a log, for whoever fetches them."""

import asyncio
from collections import deque
from typing import Any

from raydix.runtime.messages.log_line import LogLine

MAX_LINES = 2000
_MAX_ANSWER_LINES = 200


class LatestLines:
    """Owns: the last lines of a log, which count from 0."""

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self._lines: deque[LogLine] = deque(maxlen=max_lines)
        self._num_lines = 0

    @property
    def num_lines(self) -> int:
        """How many there were."""
        return self._num_lines

    def add(self, line: LogLine) -> None:
        """Add a line; the oldest one makes room."""
        self._lines.append(line)
        self._num_lines += 1

    def since(self, number: int, max_lines: int) -> tuple[int, list[LogLine]]:
        """Some lines from this number on, and the number of the first of them.

        It is larger than `number` if older ones are gone.
        """
        first = max(number, self._num_lines - len(self._lines))
        begin = first - (self._num_lines - len(self._lines))
        return first, list(self._lines)[begin : begin + max_lines]


class LogFeed:
    """Owns: the latest lines of a log, and who waits for the next ones. Belongs to one loop."""

    def __init__(self) -> None:
        self._lines = LatestLines()
        self._came = asyncio.Event()

    @property
    def latest(self) -> list[LogLine]:
        """All lines that are there."""
        return self._lines.since(0, MAX_LINES)[1]

    def add(self, line: LogLine) -> None:
        """Add a line, for all who wait."""
        self._lines.add(line)
        self._came.set()

    def lines_since(self, number: int) -> dict[str, Any]:
        """Lines from this number on, none if there are none yet.

        `first` is the number of the first one: larger if older ones were dropped meanwhile.
        """
        first, lines = self._lines.since(number, _MAX_ANSWER_LINES)
        return {"first": first, "lines": [line.to_values() for line in lines]}

    async def next_lines(self, number: int) -> dict[str, Any]:
        """The same, once there are any."""
        while self._lines.num_lines <= number:
            self._came.clear()
            await self._came.wait()
        return self.lines_since(number)
