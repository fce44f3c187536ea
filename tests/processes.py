"""Which tests run in the same process, where pytest has several (`-n`)."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RAY = "ray"
"""The group of all files that start Ray: its tests share one cluster and one engine."""
APART = "tests/simulation/"
"""Tests that share nothing and compute for long."""


@cache
def starts_ray(path: str) -> bool:
    """Whether some test of this file does."""
    return "mark.ray" in (ROOT / path).read_text()


def group_of(node: str) -> str:
    """What a test, by the name that pytest gives it, has in common with those of its process."""
    path = node.partition("::")[0]
    if path.startswith(APART):
        return node
    # Tests of a file share fixtures.
    return RAY if starts_ray(path) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give a process that has nothing to do the next group."""
    # Whoever runs tests in one process does without it.
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where there are several processes, begin with Ray and with what takes long.

    The tests of Ray wait more than they compute, and so cost the other processes little.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


def _turn(node: str) -> int:
    group = group_of(node)
    return 0 if group == RAY else 1 if group == node else 2
