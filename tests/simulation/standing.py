"""Workloads in which plans stand: requests that decode for long, and now and then another one."""

import random
from dataclasses import replace

from tests.simulation.workload import Workload, draw_workload

_LEAST_SPAN_S = 8.0


def draw_standing_workload(seed: int) -> Workload:
    """A random workload whose ranks step alone, and mostly decode."""
    workload, draw = draw_workload(seed), random.Random(seed + 19)
    settings = replace(
        workload.settings,
        ranks_per_lane=1,
        lanes_per_group=1,
        num_lanes=draw.choice([1, 1, 2]),
        experts=None,
        max_repeats=draw.choice([1, 2, 5, 16]),
    )
    faults = replace(
        workload.faults,
        ahead_fraction=draw.choice([0.0, 0.3, 0.9]),
        step_s=draw.choice([0.002, 0.010]),
    )
    return replace(
        workload,
        settings=settings,
        faults=faults,
        span_s=max(workload.span_s, _LEAST_SPAN_S),
        stop_fraction=draw.choice([0.05, 0.5, 1.0]),
        max_output_tokens=draw.choice([30, 80]),
        logprob_fraction=draw.choice([0.0, 0.0, 0.1]),
        grammar_fraction=draw.choice([0.0, 0.0, 0.1]),
    )
