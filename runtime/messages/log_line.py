"""What an actor has to say to people, on its way to whoever started the engine."""

import logging
from dataclasses import dataclass
from typing import Any

from raydix.runtime.messages.control import pack_values, unpack_values

MAX_TEXT_CHARACTERS = 8192
"""The most characters of a text. The middle of a longer one is left out: a traceback says most at
its two ends.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One record of the log; its text may have several lines."""

    time_s: float
    """The time on the wall clock, in seconds since the epoch."""
    level: int
    """The level, numbered as in `logging`."""
    actor: str
    """Who says it, such as `gpu0`."""
    logger: str
    text: str
    took_s: float | None = None
    """How long the phase took that it tells the end of; None: it tells of none."""
    engine: str | None = None
    """The engine that it is from, where lines of several come together."""
    node: str | None = None
    """The address of that engine's node."""

    def to_values(self) -> list[Any]:
        """The line as plain values."""
        own = [self.time_s, self.level, self.actor, self.logger, self.text, self.took_s]
        return [*own, self.engine, self.node]

    @staticmethod
    def from_values(values: Any) -> "LogLine":
        """What `to_values` made. Raises ValueError for anything else."""
        if not isinstance(values, list):
            raise ValueError(f"{type(values).__name__} is no log line")
        try:
            time_s, level, actor, logger, text, took_s, engine, node = values
            return LogLine(
                time_s=float(time_s),
                level=int(level),
                actor=str(actor),
                logger=str(logger),
                text=str(text),
                took_s=None if took_s is None else float(took_s),
                engine=None if engine is None else str(engine),
                node=None if node is None else str(node),
            )
        except TypeError as error:
            raise ValueError(f"a log line with other fields: {error}") from error

    def encode(self) -> bytes:
        """The line as a datagram."""
        return pack_values(self.to_values())

    @staticmethod
    def decode(data: bytes) -> "LogLine":
        """What `encode` made. Raises ValueError for anything else."""
        return LogLine.from_values(unpack_values(data))

    @staticmethod
    def of(record: logging.LogRecord, actor: str) -> "LogLine":
        """What a record says, with the traceback of its exception."""
        # A path may hold bytes that are no Unicode.
        text = _PLAIN.format(record).encode(errors="backslashreplace").decode()
        if len(text) > MAX_TEXT_CHARACTERS:
            half = MAX_TEXT_CHARACTERS // 2
            left_out = len(text) - 2 * half
            text = f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"
        return LogLine(
            time_s=record.created,
            level=record.levelno,
            actor=actor,
            logger=record.name,
            text=text,
            took_s=record.__dict__.get("took_s"),
            engine=record.__dict__.get("engine"),
            node=record.__dict__.get("node"),
        )


_PLAIN = logging.Formatter("%(message)s")
