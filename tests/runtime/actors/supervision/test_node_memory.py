"""Who uses a node's L2, where the list of its users is full."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors import l2_claims
from raydix.runtime.actors.process import ProcessId
from raydix.runtime.actors.supervision.l2_plan import Guest
from raydix.runtime.actors.supervision.node_memory import NodeMemoryActor
from raydix.runtime.actors.supervision.node_share import L2Claim
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.cache.host.arena_geometry import USERS_BYTES
from raydix.runtime.testing.spawner import InProcessSpawner
from tests.runtime.actors.supervision.test_l2_plan import PLAN


@pytest.fixture
async def l2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeMemoryActor]:
    monkeypatch.setattr(l2_claims, "user_folder", lambda: tmp_path)
    claim = L2Claim(
        node="n", name="l2-a", model_path="m", size_bytes=PLAN.size_bytes, total_bytes=None
    )
    made = NodeMemoryActor(
        claim=claim,
        node=None,
        maker_pid=os.getpid(),
        spawner=InProcessSpawner(),
        supervision=Supervision(),
        log_path="",
        on_fatal=lambda: None,
    )
    yield made
    await made.stop()


def guest(engine: str) -> Guest:
    return Guest(
        engine=engine,
        process=ProcessId.of(os.getpid()),
        scheduler_address="unix:/nowhere",
        secret=b"s" * 32,
        keep_s=10.0,
    )


async def test_an_engine_that_is_refused_as_the_list_of_users_is_full_does_not_count_as_one(
    l2: NodeMemoryActor,
) -> None:
    await l2.join(PLAN, guest("first"), None)
    with pytest.raises(ConfigError, match="as many as it can note"):
        await l2.join(PLAN, guest("x" * USERS_BYTES), None)
    assert l2.stats()["num_engines"] == 1
