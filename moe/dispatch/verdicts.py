"""Probes in a process of their own: a library that does not fit may end the one that imports it.

`python -m raydix.moe.dispatch.verdicts BACKEND...` prints what the probe of each backend finds, a
line of JSON for each.
"""

import json
import sys
from dataclasses import asdict

from raydix.moe.dispatch.machine import Machine
from raydix.moe.dispatch.probes import probe


def main() -> None:
    """Print the verdict on each backend that is named on the command line."""
    machine = Machine()
    for backend in sys.argv[1:]:
        print(json.dumps(asdict(probe(backend, machine))))


if __name__ == "__main__":
    main()
