"""The ranks of a step group: they start together, and when one of them ends, all do."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from raydix.runtime.actors.supervision.keeper import Keeper, MayStart, at_once
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import RunningActor

logger = logging.getLogger(__name__)

MakeRank = Callable[[int, int], Awaitable[RunningActor]]
"""Starts the process of a rank, in the given incarnation; else like `Make`."""
BringUpRank = Callable[[int, RunningActor], Awaitable[None]]
"""Does a part of what makes a rank serve."""


class _GroupIncarnation:
    """Owns: how far one incarnation of a group's ranks has come."""

    def __init__(self) -> None:
        self.loaded: set[int] = set()
        """The ranks that have loaded."""
        self.met = asyncio.Event()
        """Set once all have."""
        self.error: Exception | None = None
        """Why it ended, from then on."""


class RankGroup:
    """Owns: the keepers of a step group's ranks, whose incarnations go in step.

    An incarnation ends as a whole, and by one error: that of the rank that ended first. The next
    one starts once every process of it has ended. No rank starts before all ranks of its
    incarnation have loaded, because starting ranks wait for each other.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        make: MakeRank,
        load: BringUpRank,
        start: BringUpRank,
        *,
        on_end: Callable[[int], None],
        supervision: Supervision,
        may_start: MayStart = at_once,
    ) -> None:
        """`start` follows `load` once all ranks have loaded.

        `on_end` is called with a rank that ends; see `OnEnd`. `may_start`: of each incarnation.
        """
        self._make = make
        self._load = load
        self._start = start
        self._on_end = on_end
        self._may_start = may_start
        self._incarnations: defaultdict[int, _GroupIncarnation] = defaultdict(_GroupIncarnation)
        """Each incarnation, by number, until all ranks have left it."""
        self.keepers = [self._keeper(rank, supervision) for rank in ranks]

    def _keeper(self, rank: int, supervision: Supervision) -> Keeper:
        async def make(incarnation: int) -> RunningActor:
            await self._join(incarnation)
            return await self._make(rank, incarnation)

        async def bring_up(actor: RunningActor, incarnation: int) -> None:
            await self._load(rank, actor)
            await self._meet(incarnation, rank)
            await self._start(rank, actor)

        def on_end(incarnation: int, error: Exception | None) -> None:
            self._on_end(rank)
            if error is not None:
                self._end_incarnation(incarnation, rank, error)

        return Keeper(
            f"gpu{rank}",
            make,
            bring_up,
            on_end=on_end,
            supervision=supervision,
            may_start=self._may_start,
        )

    async def _join(self, incarnation: int) -> None:
        """Wait until no process of an earlier incarnation is left.

        Raises the error by which this incarnation has already ended.
        """
        for keeper in self.keepers:
            await keeper.gone(incarnation - 1)
        self._incarnations.pop(incarnation - 1, None)

        # Another rank was faster to start, and to fail; this one counts the same end.
        error = self._incarnations[incarnation].error
        if error is not None:
            raise error

    async def _meet(self, incarnation: int, rank: int) -> None:
        """A rank has loaded: wait until all have. Ends with the incarnation, if it ends before."""
        current = self._incarnations[incarnation]
        current.loaded.add(rank)
        if len(current.loaded) == len(self.keepers):
            current.met.set()
        await current.met.wait()

    def _end_incarnation(self, incarnation: int, rank: int, error: Exception) -> None:
        current = self._incarnations[incarnation]
        if current.error is not None:
            return
        current.error = error
        if len(self.keepers) > 1:
            logger.error("gpu%d, incarnation %d, ends its group: %s", rank, incarnation, error)

        # One that has yet to start this incarnation will find the error; later ones are not meant.
        for keeper in self.keepers:
            keeper.fail(error, incarnation)
