"""How an actor's log leaves its process: line by line, without ever waiting."""

import logging
import socket
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
        except OSError:
            # No room, or the Supervisor has ended, with which this process ends, too.
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
    """Send what Raydix logs in this process to the desk at `path`, from now on."""
    sender = LogSender(path, actor)
    for name in LOGGERS:
        each = logging.getLogger(name)
        each.setLevel(logging.INFO)
        each.addHandler(sender)
