"""One Ray cluster and one engine for all tests that need them: starting them is the dear part."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

IMPATIENT = Supervision(heartbeat_interval_s=0.5, heartbeat_deadline_s=5.0, max_crashes=50)
"""Hung actors are found soon; every fault is tried on the same engine."""


def own_name(name: str) -> str:
    """A name of an engine that no other test run on this host uses."""
    return f"{name}-{os.getpid()}"


@dataclass(frozen=True)
class SharedEngine:
    """A running engine with two ranks and three tiers, and what it was made from."""

    handle: EngineHandle
    config: EngineConfig

    @property
    def name(self) -> str:
        return self.handle.name


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[PrivateCluster]:
    """A Ray cluster in this process, where engines of several ranks may run side by side."""
    cluster = PrivateCluster(num_cpus=16)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def checkpoint() -> Iterator[Path]:
    """A small random model."""
    folder = Path(tempfile.mkdtemp(prefix="raydix-checkpoint-"))
    yield make_checkpoint(folder, Family.QWEN3, seed=3, max_position_embeddings=2048)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def shared_engine(ray_cluster: PrivateCluster, checkpoint: Path) -> Iterator[SharedEngine]:
    """Two ranks, an L1 too small for much, an arena and files."""
    storage = tempfile.mkdtemp(prefix="raydix-l3-")
    config = load_config(
        {
            "model": {"path": str(checkpoint)},
            "parallel": {"dp": 2},
            "cache": {
                "page_size": 16,
                "l1": {"num_pages": 128},
                "l2": {"bytes_per_node": "16MiB", "keep_s": 0},
                "l3": {"backend": "file", "path": storage},
                "prefetch": {"strategy": "wait_complete"},
            },
        }
    )

    handle = start_engine(config, own_name("shared"), supervision=IMPATIENT)
    yield SharedEngine(handle, config)

    asyncio.run(handle.shutdown())
    shutil.rmtree(storage)
