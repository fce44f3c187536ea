"""Which eviction policies tiers have beside those that all workloads draw."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from raydix.runtime.config.policies import EvictionPolicy

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

_TLRU_FRACTION = 0.1
_LEARNING_FRACTION = 0.3
"""The part of workloads whose L2 learns."""


def draw_evictions(workload: Workload) -> Workload:
    """Some L1 give up the ends of conversations first, and some L2 learn."""
    draw = random.Random(workload.seed + 21)
    if draw.random() < _TLRU_FRACTION:
        settings = replace(workload.settings, eviction=EvictionPolicy.TLRU)
        workload = replace(workload, settings=settings)
    if draw.random() < _LEARNING_FRACTION:
        workload = replace(workload, l2_eviction=EvictionPolicy.REUSE)
    return workload
