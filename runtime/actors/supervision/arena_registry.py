"""What an engine's arena is to be, and who holds it, so that it outlives its HostMemory."""

import asyncio
from dataclasses import dataclass

from raydix.errors import EngineDead
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.tiers.host_arena import ArenaLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArena:
    """The pages of an arena, and how many bytes of them there are."""

    layout: KvLayout
    size_bytes: int


class ArenaRegistry:
    """Owns: where the arena is found now, and which GPU actors map it.

    A new arena makes every mapping of an older one worthless; the registry never mixes the two.
    """

    def __init__(self) -> None:
        self._current: ArenaLocation | None = None
        self._file: tuple[int, int] | None = None
        """The latest arena, whoever maps it."""
        self._epoch = 0
        """Counts arenas; one that was taken back keeps its number."""
        self._published = asyncio.Event()
        self._holders: dict[int, ArenaLocation] = {}

    async def current(self) -> tuple[ArenaLocation, int]:
        """The arena at a living HostMemory, and its number."""
        while self._current is None:
            await self._published.wait()
        return self._current, self._epoch

    def held(self) -> ArenaLocation | None:
        """The arena at a GPU actor that maps it, for a HostMemory that restarts; None if lost."""
        return next(iter(self._holders.values()), None)

    def publish(self, location: ArenaLocation) -> list[int]:
        """A HostMemory serves this arena. Returns the ranks to restart, which map another one."""
        stale = [rank for rank, own in self._holders.items() if own.file != location.file]
        self._epoch += self._file != location.file
        self._file = location.file
        self._current = location
        self._published.set()
        return stale

    def withdraw(self) -> None:
        """Forget the arena of a HostMemory that has ended; those who map it keep it."""
        self._current = None
        self._published.clear()

    def note_holder(self, rank: int, location: ArenaLocation, epoch: int) -> None:
        """Note that a GPU actor maps arena `epoch`. Raises EngineDead if another is in use."""
        if epoch != self._epoch:
            raise EngineDead(f"rank {rank} mapped an arena that is not in use any more")
        self._holders[rank] = location

    def forget_holder(self, rank: int) -> None:
        """Forget a GPU actor that has ended."""
        self._holders.pop(rank, None)
