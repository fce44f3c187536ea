"""The ranks of one lane: they start together, and when one of them ends, all do."""

import logging
from collections.abc import Awaitable, Callable, Sequence

from raydix.runtime.actors.supervision.keeper import Keeper
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import RunningActor

logger = logging.getLogger(__name__)

MakeRank = Callable[[int, int], Awaitable[RunningActor]]
"""Starts the process of a rank, in the given incarnation; else like `Make`."""
BringUpRank = Callable[[int, RunningActor], Awaitable[None]]
"""Makes a rank serve."""


class RankGroup:
    """Owns: the keepers of a lane's ranks, whose incarnations go in step.

    Incarnation n of all ranks is one generation. It ends as a whole, and by one error: that of the
    rank that ended first. The next one starts once every process of it has ended.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        make: MakeRank,
        bring_up: BringUpRank,
        *,
        on_end: Callable[[int], None],
        supervision: Supervision,
    ) -> None:
        """`on_end` is called with a rank that is found dead or condemned; see `OnEnd`."""
        self._make = make
        self._bring_up = bring_up
        self._on_end = on_end
        self._errors: dict[int, Exception] = {}
        """Why a generation ended, while the next one has not started."""
        self.keepers = [self._keeper(rank, supervision) for rank in ranks]

    def _keeper(self, rank: int, supervision: Supervision) -> Keeper:
        async def make(incarnation: int) -> RunningActor:
            await self._join(incarnation)
            return await self._make(rank, incarnation)

        async def bring_up(actor: RunningActor, incarnation: int) -> None:
            await self._bring_up(rank, actor)

        def on_end(incarnation: int, error: Exception) -> None:
            self._on_end(rank)
            self._end_generation(incarnation, rank, error)

        return Keeper(f"gpu{rank}", make, bring_up, on_end=on_end, supervision=supervision)

    async def _join(self, generation: int) -> None:
        """Wait until no process of an earlier generation is left.

        Raises the error by which this generation has already ended.
        """
        for keeper in self.keepers:
            await keeper.gone(generation - 1)
        self._errors.pop(generation - 1, None)

        # Another rank was faster to start, and to fail; this one counts the same end.
        if generation in self._errors:
            raise self._errors[generation]

    def _end_generation(self, generation: int, rank: int, error: Exception) -> None:
        if generation in self._errors:
            return
        self._errors[generation] = error
        if len(self.keepers) > 1:
            logger.error("gpu%d, incarnation %d, ends its group: %s", rank, generation, error)

        # One that has yet to start this generation will find the error; later ones are not meant.
        for keeper in self.keepers:
            keeper.fail(error, generation)
