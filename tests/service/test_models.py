"""Several models on one node share its bytes for L2: real actors on the cpu, one Ray cluster."""

import asyncio
import contextlib
from pathlib import Path

import pytest
import ray

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.control_client import call_l2
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.l2_claims import l2_claims
from raydix.runtime.actors.l2_record import l2s_of
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.ray_cluster import IMPATIENT, own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part]

MIB = 1 << 20
PATIENCE_S = 120.0
KEEP_S = 600.0


def start(name: str, model: Path, room_bytes: int, keep_s: float) -> EngineHandle:
    """Start an engine that wants 24 MiB, 8 at least, of so much beside what others have."""
    l2 = {
        "bytes_per_node": "24MiB",
        "floor_bytes": "8MiB",
        "total_bytes_per_node": room_bytes,
        "keep_s": keep_s,
    }
    cache = {"page_size": 16, "l1": {"num_pages": 64}, "l2": l2}
    config = load_config({"model": {"path": str(model)}, "cache": cache})
    return start_engine(config, own_name(name), supervision=IMPATIENT)


def taken() -> dict[str, int]:
    """Bytes of each model's L2 on this node, by the model's folder."""
    node = ray.get_runtime_context().get_node_id()
    return {Path(each.model_path).name: each.size_bytes for each in l2_claims(node)}


def mib(size_bytes: int) -> int:
    """The nearest number of MiB: an arena has whole pages."""
    return round(size_bytes / MIB)


async def end_unused() -> None:
    """End what other tests of this session have left, which would make room."""
    node = ray.get_runtime_context().get_node_id()
    used = set()
    for each in l2s_of(node):
        # One that is gone is ending already.
        with contextlib.suppress(EngineDead):
            if not await call_l2(each, "end"):
                used.add(each.name)
    async with asyncio.timeout(PATIENCE_S):
        while {each.name for each in l2_claims(node)} - used:
            await asyncio.sleep(0.05)


async def kept_unused(model: Path) -> None:
    """Return once no engine uses a model's L2, which stays."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            node = ray.get_runtime_context().get_node_id()
            for record in l2s_of(node):
                # Those of other tests may go meanwhile.
                with contextlib.suppress(EngineDead):
                    described = await call_l2(record, "describe")
                    if described["model_path"] == str(model) and not described["engines"]:
                        return
            await asyncio.sleep(0.05)


async def fill(handle: EngineHandle) -> None:
    """Let an engine's L2 hold something that is worth keeping."""
    async with await AsyncLLM.connect(handle.name) as client:
        async for _ in client.generate(list(range(40)), {"max_tokens": 2}):
            pass
    async with asyncio.timeout(PATIENCE_S):
        while not (await handle.call("stats"))["host"]["pages_ready"]:
            await asyncio.sleep(0.05)


async def test_models_share_a_nodes_bytes_with_a_floor_each(
    ray_cluster: PrivateCluster, tmp_path: Path
) -> None:
    one, two, three = (
        make_checkpoint(tmp_path / name, Family.QWEN3, seed=seed, max_position_embeddings=512)
        for name, seed in (("one", 51), ("two", 52), ("three", 53))
    )
    await end_unused()
    room = sum(taken().values()) + 32 * MIB

    async with contextlib.AsyncExitStack() as stack:

        async def serving(name: str, model: Path, keep_s: float) -> EngineHandle:
            handle = await asyncio.to_thread(start, name, model, room, keep_s)
            stack.push_async_callback(handle.shutdown)
            return handle

        # What the others leave is to be in no later test's way.
        first = await serving("one", one, KEEP_S)
        await serving("two", two, 0.0)
        assert (mib(taken()[one.name]), mib(taken()[two.name])) == (24, 8)
        refused = rf"others have taken .*{one} .*Lower cache.l2.floor_bytes"
        with pytest.raises(ConfigError, match=refused):
            await serving("three", three, 0.0)

        # What nobody uses makes room for all that the next one wants.
        await fill(first)
        await first.shutdown()
        await kept_unused(one)
        await serving("three", three, 0.0)
        assert one.name not in taken()
        assert (mib(taken()[two.name]), mib(taken()[three.name])) == (8, 24)
