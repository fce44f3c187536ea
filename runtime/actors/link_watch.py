"""What ends a rank that is stuck in what it was sent when its link ended."""

import logging
import threading
from collections.abc import Callable

from raydix.runtime.actors.links.link import BlockingLink

logger = logging.getLogger(__name__)

ALONE_S = 60.0
"""The longest that a rank without peers may take over a step whose result nobody waits for."""


class LinkWatch:
    """Owns: a thread that waits for the end of one link.

    The thread that reads the link cannot do so: it may be the one that is stuck, in a step to which
    a peer never comes or which the device never ends.
    """

    def __init__(
        self,
        link: BlockingLink,
        num_done: Callable[[], int],
        patience_s: float,
        on_stuck: Callable[[], None],
    ) -> None:
        """`on_stuck` is called once the link has ended and `num_done` stays the same so long."""
        self._link = link
        self._num_done = num_done
        self._patience_s = patience_s
        self._on_stuck = on_stuck
        self._is_over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._run, name="link watch", daemon=True).start()

    def __exit__(self, *_error: object) -> None:
        """All that the link brought has been done."""
        self._is_over.set()

    def _run(self) -> None:
        self._link.wait_ended()
        before = self._num_done()
        while not self._is_over.wait(self._patience_s):
            now = self._num_done()
            if now == before:
                logger.error("no step has ended for %s s since the link did", self._patience_s)
                self._on_stuck()
                return
            before = now
