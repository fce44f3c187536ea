"""A GPU actor's side of L2: its mapping of the arena, and the engine that copies pages."""

import threading
from collections.abc import Callable

from raydix.errors import AccountingError
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.tiers.host_arena import ArenaLocation, HostArena
from raydix.runtime.tiers.transfers import TransferEngine


class ArenaCopies:
    """Owns: the arena's mapping and the transfer engine; neither is there before `attach`."""

    def __init__(self) -> None:
        self._arena: HostArena | None = None
        self._engine: TransferEngine | None = None
        self._lock = threading.Lock()
        """The lock to hold while copies start or the engine is replaced, which two threads do."""

    def attach(
        self, location: ArenaLocation, make: Callable[[HostArena], TransferEngine]
    ) -> ArenaLocation:
        """Map the arena, unless it is mapped. Returns where this process offers it."""
        if self._arena is None or not self._arena.is_at(location):
            arena = HostArena.attach(location)
            with self._lock:
                self._end()
                self._arena = arena
        if self._engine is None:
            with self._lock:
                self._engine = make(self._arena)

        return self._arena.location

    def start(self, plan: StepPlan) -> None:
        """Begin the plan's copies. Raises AccountingError if there is no arena."""
        with self._lock:
            if self._engine is None:
                raise AccountingError(f"plan {plan.step} copies pages, and no arena is attached")
            self._engine.start(plan.loads, plan.backups)

    @property
    def engine(self) -> TransferEngine | None:
        """The engine by which a step waits for loads; None without an arena."""
        return self._engine

    def drain(self) -> None:
        """Wait until all copies begun so far have ended and been reported."""
        if self._engine is not None:
            self._engine.drain()

    def abandon_peers(self) -> None:
        """Wait for no share of another rank any more."""
        # Read once: another thread may end it meanwhile.
        engine = self._engine
        if engine is not None:
            engine.abandon_peers()

    def rest(self) -> None:
        """End the engine, whose pages go, and keep the mapping: HostMemory may need it."""
        with self._lock:
            self._end_engine()

    def close(self) -> None:
        """End the engine, then the mapping."""
        with self._lock:
            self._end()

    def _end_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _end(self) -> None:
        self._end_engine()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
