"""What concerns thousands of requests or pages at once, and is done for a few of them at a time."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_PIECE = 256
"""The total weight of the items in one piece; items of weight 1 take a few ms together."""

Item = TypeVar("Item")
_Job = tuple[Callable[[Any], object], int]
"""The act to carry out for each item, and the weight of one item."""


class Pieces:
    """Owns: what is left to do of decisions about many, in order.

    A first piece is done with the event that decides, and one more with each `Tick`: other events
    are taken in between, so each act looks for itself whether there is still something to do.
    """

    def __init__(self) -> None:
        self._jobs: dict[_Job, deque[Any]] = {}
        self._walks: dict[Callable[[], bool], None] = {}

    @property
    def has_work(self) -> bool:
        """Whether a `Tick` would go on with the work."""
        return bool(self._jobs or self._walks)

    def add(self, act: Callable[[Item], object], items: Iterable[Item], *, weight: int = 1) -> None:
        """Carry out `act` for each item: for the first ones now, unless earlier work is left.

        For whom the same is still to be done from before, it is done once, and first: what comes
        again and again adds no work without end, and lets nobody wait for ever.
        """
        is_first = not self.has_work
        left = self._jobs.get((act, weight))
        if left:
            # By identity, for lists are not hashable.
            items = {id(item): item for item in (*left, *items)}.values()
        self._jobs[act, weight] = deque(items)
        if is_first:
            self.advance()

    def walk(self, go_on: Callable[[], bool]) -> None:
        """Call this again and again, a piece of work each time, until it says that it is done.

        Requests come first. A walk that is under way goes on.
        """
        is_first = not self.has_work
        self._walks[go_on] = None
        if is_first:
            self.advance()

    def advance(self) -> None:
        """Do the next piece."""
        num_left = _PIECE
        while self._jobs and num_left > 0:
            job, items = next(iter(self._jobs.items()))
            if not items:
                del self._jobs[job]
                continue
            act, weight = job
            act(items.popleft())
            num_left -= weight

        if self._walks and num_left == _PIECE:
            go_on = next(iter(self._walks))
            if go_on():
                del self._walks[go_on]
