"""Whether the head of the Ray cluster that this process belongs to is there.

Without it Ray ends the process after a minute, with words of its own. So what is lost and what to
do is told before, and the process ends a little sooner.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from enum import Enum

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_DIAL_S = 5.0
_TELL_S = 3.0
"""How long a head may be silent before anybody is told."""
_SPARE_S = 10.0
"""The time by which we end before Ray would."""
_LAST_WORDS_S = 1.0


class HeadNews(Enum):
    """What has changed."""

    SILENT = "silent"
    BACK = "back"
    LOST = "lost"


class HeadSilence:
    """Owns: since when a head has not answered, and what of it was told."""

    def __init__(self, patience_s: float, now_s: float) -> None:
        """`patience_s`: the time after which a silent head is lost."""
        self.patience_s = patience_s
        self._answered_s = now_s
        self._is_told = False

    def note(self, now_s: float, *, has_answered: bool) -> HeadNews | None:
        """The news of a head that has answered, or has not; None if there is none."""
        if has_answered:
            was_told, self._is_told = self._is_told, False
            self._answered_s = now_s
            return HeadNews.BACK if was_told else None
        silent_s = now_s - self._answered_s
        if silent_s >= self.patience_s:
            return HeadNews.LOST
        if silent_s >= _TELL_S and not self._is_told:
            self._is_told = True
            return HeadNews.SILENT
        return None


def watch_head(
    address: str, ray_s: float, is_ours: Callable[[], bool], end: Callable[[], None]
) -> threading.Thread:
    """Watch a head on a thread, and end the process shortly before Ray would.

    address: where the head answers, `HOST:PORT`. ray_s: the seconds after which Ray ends a process
    whose head is silent. is_ours: whether this process still belongs to that cluster; else nobody
    watches any more. end: ends the process.
    """
    silence = HeadSilence(max(ray_s - _SPARE_S, ray_s / 2), time.monotonic())

    def run() -> None:
        while is_ours():
            news = silence.note(time.monotonic(), has_answered=_answers(address))
            if news is not None and is_ours():
                tell(news, address, silence.patience_s)
                if news is HeadNews.LOST:
                    # A console is written to on a thread of its own.
                    time.sleep(_LAST_WORDS_S)
                    end()
                    return
            time.sleep(_LOOK_S)

    thread = threading.Thread(target=run, name="raydix-head-watch", daemon=True)
    thread.start()
    return thread


def tell(news: HeadNews, address: str, patience_s: float) -> None:
    """Log the news."""
    match news:
        case HeadNews.SILENT:
            logger.warning(
                "the head of the Ray cluster at %s does not answer. What runs goes on meanwhile; "
                "unless it is back within %g s, this process ends, and so do all engines of the "
                "cluster",
                address,
                patience_s,
            )
        case HeadNews.BACK:
            logger.info("the head of the Ray cluster at %s answers again", address)
        case HeadNews.LOST:
            logger.error(
                "the Ray cluster at %s has lost its head, which has not answered for %g s: this "
                "process ends, and Ray ends all engines of the cluster. Start the cluster again "
                "(ray start --head), then what ran on it. What L3 holds is found again",
                address,
                patience_s,
            )


def _answers(address: str) -> bool:
    """Whether somebody takes connections there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _DIAL_S).close()
    except OSError:
        return False
    return True
