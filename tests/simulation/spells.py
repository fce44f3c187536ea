"""Spells of slowness: for a while something takes longer, fails no more often, and heals."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

LONGEST_SPELL_S = 40.0
_STORAGE_LAGS_S = (0.3, 2.5, 6.0)
"""Below the deadline that the storage actor is given: every answer comes, and is right."""
_LOAD_LAGS_S = (0.05, 0.5, 3.0)
_PULL_LAGS_S = (0.05, 0.5, 3.0, 20.0)
"""The longest is past any deadline."""
_DURATIONS_S = (0.5, 3.0, LONGEST_SPELL_S)


def slow_storage(world: World, draw: random.Random) -> None:
    """Let L3 read and write more slowly, and sometimes answer questions late, too."""
    faults = world.faults
    world.num_faults["storage slowed"] += 1
    faults.storage_lag_s = draw.choice(_STORAGE_LAGS_S)
    faults.exists_lag_s = draw.choice([0.0, 0.0, faults.storage_lag_s])

    def heal() -> None:
        faults.storage_lag_s = faults.exists_lag_s = 0.0

    world.after(draw.choice(_DURATIONS_S), heal)


def slow_pulls(world: World, draw: random.Random) -> None:
    """Let pages from other nodes come later."""
    faults = world.faults
    world.num_faults["pulls slowed"] += 1
    faults.pull_lag_s = draw.choice(_PULL_LAGS_S)

    def heal() -> None:
        faults.pull_lag_s = 0.0

    world.after(draw.choice(_DURATIONS_S), heal)


def slow_loads(world: World, draw: random.Random) -> None:
    """Let every copy from L2 to a GPU take longer."""
    faults = world.faults
    world.num_faults["loads slowed"] += 1
    faults.load_lag_s = draw.choice(_LOAD_LAGS_S)

    def heal() -> None:
        faults.load_lag_s = 0.0

    world.after(draw.choice(_DURATIONS_S), heal)
