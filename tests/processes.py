"""Which tests run in the same process, where pytest has several (`-n`)."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = "ray"
"""The group of all files whose tests run on the session's Ray cluster: one process has it."""
OWN = "clusters"
"""The group of all files whose tests start clusters of their own, one after the other."""
APART = re.compile(r"tests/simulation/|tests/exactness/[^[]*\[cuda-")
"""Tests that share nothing and take long: each of those of a GPU compiles kernels of its own."""
AFTER_SILENCE = "tests/runtime/actors/test_silence.py"
"""The file that waits until a client was without an engine for long: best behind all others."""
_USES_SHARED = re.compile(r"\b(?:ray_cluster|shared_engine|bereaved)[:\"]")
"""What is in a file whose tests ask for a fixture of the session, by its name."""


@cache
def cluster_of(path: str) -> str | None:
    """Which group a file belongs to if some test of it starts Ray."""
    text = (ROOT / path).read_text()
    if "mark.ray" not in text:
        return None
    return SHARED if _USES_SHARED.search(text) else OWN


def group_of(node: str) -> str:
    """What a test, by the name that pytest gives it, has in common with those of its process."""
    path = node.partition("::")[0]
    # Tests of a file share fixtures.
    return cluster_of(path) or (node if APART.match(node) else path)


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

    The tests of Ray wait more than they compute, and so cost the other processes little. They are
    two of the processes, as all of them one after the other would take longest by far.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


def _turn(node: str) -> int:
    group = group_of(node)
    if group == SHARED:
        return 1 if node.startswith(AFTER_SILENCE) else 0
    return 2 if group == OWN else 3 if group == node else 4


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the session's Ray cluster behind the last test on it: idle, too, it takes time."""
    is_last = nextitem is not None and group_of(nextitem.nodeid) != SHARED
    if hasattr(item.config, "workerinput") and group_of(item.nodeid) == SHARED and is_last:
        assert isinstance(item, pytest.Function)
        for fixture in item.session._fixturemanager.getfixturedefs("ray_cluster", item) or ():
            # What was made with it ends before it.
            fixture.finish(item._request)
