"""Workloads in which several engines use one L2: what one brings there the others find."""

import random
from dataclasses import replace

from tests.simulation.workload import Workload, draw_workload


def draw_shared_workload(seed: int) -> Workload:
    """A random workload, asked of two or three engines of one node, each a part of it."""
    draw = random.Random(f"{seed} shared")
    workload = draw_workload(seed)
    num_engines = draw.choice([2, 2, 3])
    return replace(
        workload,
        settings=replace(workload.settings, has_host_memory=True),
        num_engines=num_engines,
        num_requests=workload.num_requests // num_engines + 4,
        num_scheduler_kills=draw.choice([0, 1, 2]),
        num_engine_ends=draw.choice([0, 0, 1]),
        # All of L2 may be granted to engines that need none of it.
        l2_pages=workload.l2_pages * num_engines,
    )


def draw_pulling_workload(seed: int) -> Workload:
    """A random workload, asked of two to four nodes that pull from each other."""
    draw = random.Random(f"{seed} pulling")
    workload = draw_workload(seed)
    num_nodes, num_engines = draw.choice([(2, 1), (2, 1), (3, 1), (4, 1), (2, 2)])
    faults = replace(
        workload.faults,
        pull_s=draw.choice([0.0002, 0.002, 0.02]),
        bad_pull_fraction=draw.choice([0.0, 0.0, 0.1]),
        leased_fraction=random.Random(f"{seed} leases").choice([0.0, 0.5, 1.0]),
    )
    return replace(
        workload,
        settings=replace(workload.settings, has_host_memory=True),
        faults=faults,
        num_nodes=num_nodes,
        num_engines=num_engines,
        num_requests=workload.num_requests // (num_nodes * num_engines) + 4,
        l2_pages=2 * workload.l2_pages,
        num_peer_flaps=draw.choice([0, 0, 2, 4]),
        num_peer_spells=draw.choice([0, 0, 1, 2]),
    )
