"""A thread beside the steps that brings experts into seats."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raydix.ids import LogicalExpertId
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.model.experts.stored_experts import StoredExperts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExpertMove:
    """An expert of the store is to be in a seat, to which nobody routes."""

    layer: int
    expert: LogicalExpertId
    seat: int
    copy_id: int | None = None
    """The id by which the copy is asked for; None: nobody asks for it."""


class ExpertMover:
    """Owns: moves that are ordered and not yet carried out. They are, one after another.

    And the ids of those that have landed, until they are taken.
    """

    def __init__(self, stored: StoredExperts, on_error: Callable[[BaseException], None]) -> None:
        """`on_error` is called in the thread."""
        self._stored = stored
        self._on_error = on_error
        self._moves: queue.Queue[ExpertMove | None] = queue.Queue()
        self._copied: deque[int] = deque()
        self._thread = threading.Thread(target=self._run, name="expert mover", daemon=True)
        self._thread.start()

    def start(self, moves: Iterable[ExpertMove]) -> None:
        """Carry these out after all that were ordered before; never waits."""
        for move in moves:
            self._moves.put(move)

    def take_copied(self) -> Int32Array:
        """The ids of copies that have landed since the last time."""
        return int32_array([self._copied.popleft() for _ in range(len(self._copied))])

    def drain(self) -> None:
        """Wait until all that was ordered so far is carried out."""
        self._moves.join()

    def close(self) -> None:
        """Carry out what is ordered, then end the thread."""
        self._moves.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (move := self._moves.get()) is not None:
            try:
                self._stored.fill_seat(move.layer, move.seat, move.expert)
                if move.copy_id is not None:
                    self._copied.append(move.copy_id)
            except Exception as error:
                logger.exception("cannot bring an expert into its seat: %s", move)
                self._on_error(error)
            finally:
                self._moves.task_done()
