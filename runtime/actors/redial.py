"""How an actor finds its Scheduler or HostMemory again, which may be being restarted."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from raydix.runtime.actors.links.link import BlockingLink, LinkClosed, LinkRefused, LinkSilent

logger = logging.getLogger(__name__)

RECONNECT_S = 120.0
"""How long a GPU actor waits for the Scheduler to be restarted."""

L = TypeVar("L", bound=BlockingLink)

Dial = Callable[[threading.Event], L]
"""Connects to a listener. Raises LinkClosed if nobody answers, or after the event is set, which may
take as long as a handshake.
"""


def redial(dial: Dial[L], stop: threading.Event, peer: str, patience_s: float) -> L | None:
    """A link to `peer`; None once `stop` is set.

    Raises LinkClosed if there is none for `patience_s`.
    """
    began_s = time.monotonic()
    warned = ""
    give_up_s = began_s + patience_s
    delay_s = 0.01
    while not stop.is_set():
        try:
            link = dial(stop)
            logger.info("linked to %s, %.1f s after dialling", peer, time.monotonic() - began_s)
            return link
        except LinkClosed as closed:
            # One that hangs up on us is being restarted, or will never take us.
            if isinstance(closed, LinkRefused | LinkSilent) and str(closed) != warned:
                warned = str(closed)
                what = "refused" if isinstance(closed, LinkRefused) else "not answered"
                logger.warning("%s has %s this actor: %s", peer, what, warned)
            if time.monotonic() > give_up_s:
                raise
        stop.wait(delay_s)
        delay_s = min(2 * delay_s, 0.5)
    return None
