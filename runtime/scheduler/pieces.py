"""What concerns thousands of requests at once, and is done for a few of them at a time."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_PIECE = 256
"""So many take a few ms together."""

Item = TypeVar("Item")


class Pieces:
    """Owns: what is left to do of decisions about many, in order.

    A first piece is done with the event that decides, and one more with each `Tick`: other events
    are taken in between, so each act looks for itself whether there is still something to do.
    """

    def __init__(self) -> None:
        self._jobs: dict[Callable[[Any], object], deque[Any]] = {}

    @property
    def has_work(self) -> bool:
        """A `Tick` would go on."""
        return bool(self._jobs)

    def add(self, act: Callable[[Item], object], items: Iterable[Item]) -> None:
        """Do this for each: for the first ones now, unless there is more to do before.

        For whom the same is still to be done from before, it is done once, and first: what comes
        again and again adds no work without end, and lets nobody wait for ever.
        """
        is_first = not self._jobs
        left = self._jobs.get(act, ())
        # By identity, for lists are not hashable.
        self._jobs[act] = deque({id(item): item for item in (*left, *items)}.values())
        if is_first:
            self.advance()

    def advance(self) -> None:
        """Do the next piece."""
        num_left = _PIECE
        while self._jobs and num_left:
            act, items = next(iter(self._jobs.items()))
            if not items:
                del self._jobs[act]
                continue
            act(items.popleft())
            num_left -= 1
