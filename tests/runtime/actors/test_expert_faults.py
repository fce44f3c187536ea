"""Ranks that share experts are killed, while experts move, and so is their Scheduler."""

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoint_damage import zero_experts
from tests.checkpoints import make_checkpoint
from tests.moe.gpu_ranks import NUM_RANKS
from tests.ray_cluster import IMPATIENT, SharedEngine, own_name
from tests.runtime.actors.test_faults import (
    NUM_MET_TOKENS,
    generate,
    generate_met,
    generate_through_a_kill,
    send,
    settle,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.multi_gpu)])
def group(
    request: pytest.FixtureRequest,
    ray_cluster: PrivateCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedEngine]:
    """An engine of `NUM_RANKS` ranks that share experts, which move all the time."""
    folder = tmp_path_factory.mktemp("experts")
    make_checkpoint(folder, Family.QWEN3_MOE, seed=3, max_position_embeddings=2048)
    config = load_config(
        {
            "model": {"path": str(folder), "device": request.param, "dtype": "float32"},
            "parallel": {"dp": NUM_RANKS, "ep": NUM_RANKS},
            "experts": {
                "rebalance": "deepseek",
                "rebalance_interval_steps": 8,
                "load_interval_steps": 4,
                "redundant_per_rank": 1,
            },
            "cache": {
                "page_size": 16,
                "l1": {"num_pages": 256},
                "l2": {"bytes_per_node": "16MiB", "keep_s": 0},
                "load": "always",
            },
        }
    )
    handle = start_engine(config, own_name("experts"), supervision=IMPATIENT)
    yield SharedEngine(handle, config)
    asyncio.run(handle.shutdown())
    shutil.rmtree(folder)


async def _version(group: SharedEngine) -> int:
    return int((await group.handle.call("stats"))["scheduler"]["expert_placement_version"])


async def _until_moved(group: SharedEngine, engine: AsyncLLM) -> None:
    """Wait until experts have moved under the Scheduler that there is now."""
    before = await _version(group)
    async with asyncio.timeout(60):
        while await _version(group) <= before:
            await generate(engine, 1, num_tokens=NUM_MET_TOKENS)


@pytest.mark.part
@pytest.mark.parametrize("lost", ["gpu0", "gpu1"])
async def test_tokens_survive_sigkill_of_a_rank_whose_experts_come_back_from_the_store(
    group: SharedEngine, lost: str
) -> None:
    async with await AsyncLLM.connect(group.name) as engine:
        expected = await generate_met(engine, range(80, 84))
        await _until_moved(group, engine)
        zero_experts(Path(group.config.model.path))
        before = await group.handle.call("health")
        assert await generate_through_a_kill(group, engine, range(80, 84), lost) == expected

        health = await group.handle.call("health")
        for rank in [f"gpu{rank}" for rank in range(NUM_RANKS)]:
            assert health[rank]["incarnation"] == before[rank]["incarnation"] + 1
        await _until_moved(group, engine)
        assert await generate_met(engine, range(80, 84)) == expected
        await settle(group)


@pytest.mark.part
async def test_tokens_survive_a_new_scheduler_that_knows_experts_from_the_start_alone(
    group: SharedEngine,
) -> None:
    async with await AsyncLLM.connect(group.name) as engine:
        expected = await generate_met(engine, range(90, 94))
        await _until_moved(group, engine)
        before = await group.handle.call("health")
        kill = send(group, "scheduler", signal.SIGKILL)
        assert await generate_met(engine, range(90, 94), kill) == expected
        async with asyncio.timeout(60):
            while (await group.handle.call("health"))["scheduler"]["incarnation"] == before[
                "scheduler"
            ]["incarnation"]:
                await asyncio.sleep(0.05)
        await settle(group)
        assert await generate_met(engine, range(90, 94)) == expected
        await _until_moved(group, engine)
        assert await generate_met(engine, range(90, 94)) == expected
