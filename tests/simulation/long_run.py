"""Many requests through one simulated cluster under faults of every kind.

    python -m tests.simulation.long_run --ranks-per-lane 4 --requests 10000
    python -m tests.simulation.long_run --lanes-per-group 4 --requests 10000

The seed draws the KV layout: windows, latents, layers that see everything, or a mixture. Every
answer must be exact and accounted for, every invariant hold, and nothing be held at the end. Prints
what happened as JSON; 1 if anything is wrong. The weather (delays, failing, full and lying storage)
changes as the run goes on.
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from typing import Any

from raydix.runtime.config.policies import LoadPolicy, WritePolicy
from tests.simulation.checks import sources_of
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.layouts import draw_layout, draw_states, pool_sizes
from tests.simulation.step_groups import with_experts
from tests.simulation.workload import STORAGE, Workload, draw_workload, run_workload

_REQUESTS_PER_S = 12.0
_CHECK_INTERVAL = 25
_LAYOUT_SEED = 12
"""Such that seed 0 draws a layout with groups of all four kinds."""
_SCHEDULER_COUNTERS = (
    "lost_hosts",
    "host_silences",
    "lost_ranks",
    "retracted_requests",
    "stale_loads",
    "repeated_lookups",
)
_EXPERT_FIGURES = ("moves", "placement_version")
_REQUESTS_PER_FAULT = {
    "num_rank_kills": 80,
    "num_rank_hangs": 120,
    "num_rank_flaps": 80,
    "num_host_kills": 160,
    "num_host_flaps": 80,
    "num_host_pauses": 80,
    "num_storage_kills": 120,
    "num_storage_flaps": 120,
    "num_storage_switches": 160,
    "num_flushes": 160,
    "num_scheduler_kills": 320,
    "num_client_losses": 160,
    "num_client_flaps": 160,
    "num_client_rests": 80,
    "num_storage_spells": 160,
    "num_load_spells": 160,
    "num_weather_changes": 40,
}


def make_workload(
    num_requests: int, seed: int, *, ranks_per_lane: int = 1, lanes_per_group: int = 1
) -> Workload:
    """Lanes with tiny pools, all tiers, drawn settings, and faults in proportion.

    Three lanes that step alone, or one step group.
    """
    drawn = draw_workload(seed)
    draw = random.Random(seed + _LAYOUT_SEED)
    settings = replace(
        drawn.settings,
        layout=draw_states(draw, draw_layout(draw)),
        num_lanes=lanes_per_group if lanes_per_group > 1 else 3,
        ranks_per_lane=ranks_per_lane,
        lanes_per_group=lanes_per_group,
        prefix_caching=True,
        has_host_memory=True,
        write_policy=WritePolicy.WRITE_THROUGH,
        load=LoadPolicy.ALWAYS,
        lookup_deadline_s=0.05,
    )
    settings = replace(settings, experts=None, num_pages=pool_sizes(draw, settings, [40]))
    if lanes_per_group > 1:
        settings = with_experts(draw, settings)
    num_faults = {name: -(-num_requests // each) for name, each in _REQUESTS_PER_FAULT.items()}
    return replace(
        drawn,
        settings=settings,
        storage=STORAGE,
        l2_pages=64,
        num_requests=num_requests,
        num_prefixes=24,
        faults=Faults(
            storage_failure_fraction=0.05,
            bad_object_fraction=0.1,
            lag_fraction=0.2,
            outbox_bytes=300,
        ),
        check_interval=_CHECK_INTERVAL,
        span_s=num_requests / _REQUESTS_PER_S,
        **num_faults,
    )


def describe(cluster: Cluster) -> dict[str, Any]:
    """What happened, in figures."""
    assert cluster.node.host_memory is not None
    assert cluster.node.host is not None
    counters = cluster.node.host_memory.lost_counters + cluster.node.host.counters
    names = Counter((answer.link.name, answer.submit.request_id) for answer in cluster.history)
    settings = cluster.settings
    return {
        "ranks_per_lane": settings.ranks_per_lane,
        "lanes_per_group": settings.lanes_per_group,
        "steps_on_padding": cluster.meetings.num_idle,
        "experts": {name: cluster.count(f"expert_{name}") for name in _EXPERT_FIGURES},
        "groups": [str(group.window or group.kind) for group in settings.layout.groups],
        "num_pages": settings.num_pages,
        "requests": len(cluster.history),
        "names": len(names),
        "endings": dict(Counter(answer.ending for answer in cluster.history)),
        "output_tokens": sum(len(answer.tokens) for answer in cluster.history),
        "prompt_tokens_by_source": sources_of(cluster),
        "faults": dict(cluster.num_faults),
        "storage": {
            name: count
            for name, count in sorted(counters.items())
            if name.startswith(("l3_", "storage_"))
        },
        "scheduler": {name: cluster.count(name) for name in _SCHEDULER_COUNTERS},
        "leases_at_the_end": cluster.node.host.stats()["leases"],
        "virtual_seconds": round(cluster.now_s, 1),
    }


def main() -> int:
    """Run, prove, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--ranks-per-lane", type=int, default=1)
    parser.add_argument("--lanes-per-group", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    workload = make_workload(
        arguments.requests,
        arguments.seed,
        ranks_per_lane=arguments.ranks_per_lane,
        lanes_per_group=arguments.lanes_per_group,
    )
    began_s = time.monotonic()
    try:
        cluster = run_workload(workload)
    except Exception:  # noqa: BLE001 -- whatever went wrong is the result
        traceback.print_exc()
        return 1
    figures = {
        "seed": arguments.seed,
        **describe(cluster),
        "seconds": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
