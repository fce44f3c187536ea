"""Many requests through one simulated cluster under faults of every kind.

    python -m tests.simulation.long_run

Every answer must be exact and accounted for, every invariant hold, and nothing be held at the end.
Prints what happened as JSON; 1 if anything is wrong. The weather (delays, failing, full and lying
storage) changes as the run goes on.
"""

import argparse
import json
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
from tests.simulation.workload import STORAGE, Workload, draw_workload, run_workload

_REQUESTS_PER_S = 12.0
_SCHEDULER_COUNTERS = (
    "lost_hosts",
    "host_silences",
    "lost_ranks",
    "retracted_requests",
    "stale_loads",
    "repeated_lookups",
)
_REQUESTS_PER_FAULT = {
    "num_rank_kills": 80,
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
    "num_weather_changes": 40,
}


def make_workload(num_requests: int, seed: int) -> Workload:
    """Three lanes with tiny pools, all tiers, drawn settings, and faults in proportion."""
    drawn = draw_workload(seed)
    settings = replace(
        drawn.settings,
        num_lanes=3,
        ranks_per_lane=1,
        num_pages=(40,),
        prefix_caching=True,
        has_host_memory=True,
        write_policy=WritePolicy.WRITE_THROUGH,
        load=LoadPolicy.ALWAYS,
        lookup_deadline_s=0.05,
    )
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
        span_s=num_requests / _REQUESTS_PER_S,
        **num_faults,
    )


def describe(cluster: Cluster) -> dict[str, Any]:
    """What happened, in figures."""
    assert cluster.host_memory is not None
    assert cluster.host is not None
    counters = cluster.host_memory.lost_counters + cluster.host.counters
    names = Counter((answer.link.name, answer.submit.request_id) for answer in cluster.history)
    return {
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
        "leases_at_the_end": cluster.host.stats()["leases"],
        "virtual_seconds": round(cluster.now_s, 1),
    }


def main() -> int:
    """Run, prove, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began_s = time.monotonic()
    try:
        cluster = run_workload(make_workload(arguments.requests, arguments.seed))
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
