"""Workloads whose engines sleep and wake, now and again, while requests come and processes die."""

import random
from dataclasses import replace

from raydix.runtime.config.policies import LoadPolicy, WritePolicy
from tests.simulation.faults import Faults
from tests.simulation.workload import BASE_SETTINGS, STORAGE, Workload


def draw_sleeping_workload(seed: int) -> Workload:
    """A small workload in which an engine sleeps several times, or each of two."""
    draw = random.Random(seed)
    settings = replace(
        BASE_SETTINGS,
        num_lanes=draw.choice([1, 2, 3]),
        ranks_per_lane=draw.choice([1, 1, 2]),
        num_pages=(draw.choice([30, 40, 64]),),
        write_policy=draw.choice(list(WritePolicy)),
        has_host_memory=draw.random() < 0.9,
        load=draw.choice([LoadPolicy.ALWAYS, *LoadPolicy]),
        max_repeats=draw.choice([0, 3]),
        max_asleep_wait_s=draw.choice([1000.0, 1000.0, 30.0, 0.2]),
        max_drain_s=draw.choice([1000.0, 0.2, 0.01, 0.0]),
    )
    # Requests go on at another engine by the L2 of both.
    num_engines = draw.choice([1, 1, 2]) if settings.has_host_memory else 1
    return Workload(
        seed=seed,
        settings=settings,
        num_engines=num_engines,
        hand_over_fraction=0.8 if num_engines > 1 else 0.0,
        l2_pages=draw.choice([16, 64, 200]),
        storage=STORAGE if settings.has_host_memory and draw.random() < 0.5 else None,
        faults=Faults(lag_fraction=draw.choice([0.0, 0.2])),
        span_s=draw.choice([2.0, 4.0]),
        num_sleeps=draw.choice([1, 3, 6]),
        num_rank_kills=draw.choice([0, 1, 4]),
        num_rank_flaps=draw.choice([0, 2]),
        num_host_kills=draw.choice([0, 0, 2]),
        num_host_flaps=draw.choice([0, 0, 2]),
        num_scheduler_kills=draw.choice([0, 0, 2]),
        num_client_flaps=draw.choice([0, 1]),
        num_host_pauses=draw.choice([0, 0, 4]),
        retention_fraction=draw.choice([0.0, 0.5, 1.0]),
        num_flushes=draw.choice([0, 2]),
    )
