"""Settings that every test shares. They must precede the first import of torch and ray."""

import gc
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import hypothesis
import pytest

from raydix.runtime import garbage

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# By default Ray gives its workers what other processes leave over, tests beside them included.
os.environ.setdefault("RAY_worker_niceness", "0")
# What a shell runs in the background ignores Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test measures time, and a test that failed once fails again.
hypothesis.settings.register_profile("raydix", deadline=None, derandomize=True)
hypothesis.settings.load_profile("raydix")

pytest_plugins = [
    "tests.hub_cache",
    "tests.parts",
    "tests.processes",
    "tests.ray_cluster",
    "tests.runtime.actors.bereaved_client",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options; `tests/exactness/conftest.py` says what the first two do."""
    parser.addoption("--split-kv-groups", action="store_true", help="two KV groups in every model")
    parser.addoption("--full-grid", action="store_true", help="4 ranks and every family, too")
    parser.addoption("--ranks", type=int, default=2, help="of tests for several GPUs: one each")
    parser.addoption("--http-cases", type=int, default=6, help="made-up requests per HTTP route")
    parser.addoption("--schemas", type=int, default=60, help="JSON schemas that are drawn")


def pytest_configure(config: pytest.Config) -> None:
    """What tests import, in processes of their own, too, learns of `--ranks` by the environment."""
    os.environ["RAYDIX_TEST_RANKS"] = str(config.getoption("--ranks"))


@pytest.fixture(autouse=True, scope="session")
def unspared_objects() -> Iterator[None]:
    """Actors in this process spare none of its objects from the collector of garbage.

    An engine in one process takes its actors' sparing back when it ends, so that each engine would
    look through all modules anew, for 0.3 s. `tests/runtime/testing/test_engine.py` lets them.
    """
    nothing = SimpleNamespace(
        collect=lambda: None,
        freeze=lambda: None,
        get_threshold=gc.get_threshold,
        set_threshold=gc.set_threshold,
        isenabled=gc.isenabled,
        disable=gc.disable,
        enable=gc.enable,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(garbage, "gc", nothing)
        yield


def pytest_collection_finish() -> None:
    """The collector of garbage looks through modules and thousands of tests no more: they stay."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests for GPUs are skipped where there are too few."""
    needed = 1 if item.get_closest_marker("gpu") else 0
    if item.get_closest_marker("multi_gpu"):
        needed = item.config.getoption("--ranks")
    if needed and torch_device_count() < needed:
        pytest.skip(f"needs {needed} GPU(s)")


def torch_device_count() -> int:
    """CUDA devices; torch is imported only when a test asks."""
    import torch

    return torch.cuda.device_count()
