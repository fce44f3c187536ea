"""Tests of many cases run a tenth at a time: `--part` draws which, and all without it.

A case that looks at one more seed, family or state of the same claim is marked `part`, and so is
the tiny run of a benchmark on a real cluster, a job submitted to one, and what shows with real
processes what the simulation, or engines in one process, show with every commit. Tests of a file
that share what is dear are drawn at once, by `part(together=True)`. Whatever number is given, ten
that follow each other run each of these once; what is not marked always runs.
"""

from collections import Counter
from zlib import crc32

import pytest

NUM_PARTS = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--part`."""
    text = f"a number, by which a {NUM_PARTS}th of the tests marked `part` runs; or: all"
    parser.addoption("--part", default="all", type=_number, help=text, metavar="NUMBER")


def _number(text: str) -> int | None:
    return None if text == "all" else int(text)


def part_of(function: str, index: int) -> int:
    """The part to which a function's case belongs. Functions of few cases are in other parts."""
    return (crc32(function.encode()) + index) % NUM_PARTS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other parts out."""
    number = config.getoption("--part")
    if number is None:
        return
    num_seen: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        mark = item.get_closest_marker("part")
        if mark is not None and mark.kwargs.get("together"):
            part = part_of(item.nodeid.partition("::")[0], 0)
        else:
            part = part_of(function, num_seen[function])
        num_seen[function] += 1
        (kept if mark is None or part == number % NUM_PARTS else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
