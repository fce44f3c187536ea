"""A line of the log as it is shown: to people, or to programs as JSON."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from raydix.runtime.messages.log_line import LogLine

FormatLine = Callable[[LogLine], str]
"""Formats a `LogLine` as lines of a console, without the last newline."""


def format_text(line: LogLine) -> str:
    """Local time, level, engine and node if it names them, actor and text; again for each line of
    the text, so that all can be searched for.
    """
    when = datetime.fromtimestamp(line.time_s)
    head = f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03} "
    place = "" if line.engine is None else f"{line.engine}@{line.node} "
    head += f"{logging.getLevelName(line.level):<8}{place}{line.actor:<11}"
    return "\n".join(head + _printable(part) for part in line.text.splitlines() or [""])


def format_json(line: LogLine) -> str:
    """One JSON object on one line; the time is UTC. `took_s` is that of a phase which has ended."""
    when = datetime.fromtimestamp(line.time_s, UTC)
    return json.dumps(
        {
            "time": f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z",
            "level": logging.getLevelName(line.level).lower(),
            **({} if line.engine is None else {"engine": line.engine, "node": line.node}),
            "actor": line.actor,
            "logger": line.logger,
            "message": line.text,
            **({} if line.took_s is None else {"took_s": round(line.took_s, 3)}),
        }
    )


def _printable(text: str) -> str:
    """The text without what a terminal would obey, as it may quote what a client has sent."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode()
        for each in text
    )
