"""Dropping all of L1 that no request holds, lane by lane, a piece with each event."""

from collections import deque
from collections.abc import Sequence

from raydix.runtime.cache.radix_flush import FlushWalk
from raydix.runtime.scheduler.events import L1Flushed
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.pages.l1 import L1
from raydix.runtime.scheduler.pieces import Pieces
from raydix.runtime.scheduler.ranks.lane import Lane


class L1Flush:
    """Owns: how far a flush of L1 has come.

    Meanwhile requests are admitted, and what they use or publish stays. A lane that loses its ranks
    has nothing left to drop. What was asked for while a flush was under way ends with it: it starts
    over, so that it drops what was published until then.
    """

    def __init__(self, lanes: Sequence[Lane], pieces: Pieces, outbox: Outbox) -> None:
        self._lanes, self._pieces, self._outbox = lanes, pieces, outbox
        self._walks: deque[tuple[L1, FlushWalk]] = deque()
        self._num_pages = 0

    def start(self, now_s: float) -> None:
        """Begin to walk through the trees of all lanes."""
        self._walks = deque([(lane.l1, FlushWalk(used_until_s=now_s)) for lane in self._lanes])
        self._pieces.walk(self._go_on)

    def _go_on(self) -> bool:
        l1, walk = self._walks[0]
        is_there = any(lane.l1 is l1 for lane in self._lanes)
        if is_there:
            self._num_pages += l1.flush_some(walk)
        if is_there and not walk.is_done:
            return False

        self._walks.popleft()
        if self._walks:
            return False
        self._outbox.emit(L1Flushed(num_pages=self._num_pages))
        self._num_pages = 0
        return True
