"""How an actor's log leaves its process: line by line, without ever waiting."""

import logging
import socket
import sys
import time

from raydix.runtime.messages.log_line import LogLine

LOGGERS = ("raydix", "asyncio")
"""The loggers of actors, and of their event loops, which report tasks that failed unseen."""

logger = logging.getLogger(__name__)


class LogSender(logging.Handler):
    """Sends what is logged in this process to the engine's `LogDesk`.

    The kernel takes a line over at once, so that it arrives even if this process dies right after
    it. What the kernel has no room for is dropped and counted; the next line that goes out is
    preceded by that count.
    """

    def __init__(self, path: str, actor: str) -> None:
        """`path`: of the desk's socket. Raises OSError if nobody listens there."""
        super().__init__(logging.INFO)
        self.path = path
        self.is_over = False
        """The desk has gone, with its engine."""
        self._actor = actor
        self._num_dropped = 0
        # Each line is one packet: it goes whole, or not at all.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record. Called by `logging`, one record at a time."""
        try:
            line = LogLine.of(record, self._actor)
        except Exception:  # noqa: BLE001  what an actor says wrongly must not end it
            self.handleError(record)
            return

        if self._num_dropped and self._send(self._loss()):
            self._num_dropped = 0
        if self._num_dropped or not self._send(line):
            self._num_dropped += 1

    def disconnect(self) -> None:
        """Send nothing any more.

        Not `close`: whoever sets `logging` up by `dictConfig` closes all handlers that there are.
        """
        self._socket.close()

    def _send(self, line: LogLine) -> bool:
        try:
            self._socket.send(line.encode())
        except OSError as error:
            self.is_over = not isinstance(error, BlockingIOError)
            return False
        return True

    def _loss(self) -> LogLine:
        return LogLine(
            time_s=time.time(),
            level=logging.WARNING,
            actor=self._actor,
            logger=__name__,
            text=f"{self._num_dropped} lines of the log were dropped, as they came too fast",
        )


def send_log(path: str, actor: str) -> None:
    """Send what Raydix logs in this process to the desk at `path`, from now on, too.

    Desks that have gone are sent nothing any more. Raises OSError if nobody listens there.
    """
    loggers = [logging.getLogger(name) for name in LOGGERS]
    known = {each for own in loggers for each in own.handlers if isinstance(each, LogSender)}
    for gone in (each for each in known if each.is_over):
        gone.disconnect()
        for own in loggers:
            own.removeHandler(gone)
    # An actor that several engines use may be told of one again.
    if any(each.path == path and not each.is_over for each in known):
        return

    sender = LogSender(path, actor)
    for own in loggers:
        own.setLevel(logging.INFO)
        own.addHandler(sender)


def say_where_the_log_is(actor: str) -> None:
    """Say it in this process's output, which Ray keeps, and shows on the actor's page."""
    sys.stderr.write(
        f"{actor} logs to the log of its engine, not here: `raydix logs NAME` shows it, with the "
        "name of the engine or service, and so does whoever started that.\n"
    )
    sys.stderr.flush()
