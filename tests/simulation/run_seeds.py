"""Run more random workloads than the tests do; exits with 1 if any fails.

python -m tests.simulation.run_seeds FIRST STOP [--shared | --pulling | --standing | --sleeping]
"""

import argparse
import sys
import traceback
from collections import Counter

from tests.simulation.checks import sources_of, storage_share
from tests.simulation.shared_l2 import draw_pulling_workload, draw_shared_workload
from tests.simulation.sleeping import draw_sleeping_workload
from tests.simulation.standing import draw_standing_workload
from tests.simulation.workload import draw_workload, run_workload


def main() -> int:
    """Run every seed and print the traceback of each that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", metavar="FIRST", type=int, help="the first seed")
    parser.add_argument("stop", metavar="STOP", type=int, help="the seed before which it stops")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--shared", action="store_true", help="several engines share an L2")
    kinds.add_argument("--pulling", action="store_true", help="nodes pull from each other's L2")
    kinds.add_argument("--standing", action="store_true", help="ranks often repeat plans")
    kinds.add_argument("--sleeping", action="store_true", help="engines sleep and wake")
    options = parser.parse_args()
    first, stop = options.first, options.stop
    draw = draw_shared_workload if options.shared else draw_workload
    draw = draw_pulling_workload if options.pulling else draw
    draw = draw_standing_workload if options.standing else draw
    draw = draw_sleeping_workload if options.sleeping else draw

    failed = []
    sources: Counter[str] = Counter()
    for seed in range(first, stop):
        try:
            world = run_workload(draw(seed)).world
            for engine in (engine for node in world.nodes for engine in node.engines):
                sources.update(sources_of(engine))
        # Every failing seed is reported, then the exit status says so.
        except Exception:  # noqa: BLE001
            failed.append(seed)
            print(f"seed {seed}:\n{traceback.format_exc()}", flush=True)
    print(f"{stop - first} seeds, {len(failed)} failed: {failed}")
    print(f"{storage_share(sources):.1%} of cached tokens came from L3; prompt tokens: {sources}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
