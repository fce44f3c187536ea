"""Every kind of actor is killed and stopped, once each, on one engine."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.moe.gpu_ranks import NUM_RANKS
from tests.ray_cluster import IMPATIENT, SharedEngine, own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NUM_TOKENS = 150
NUM_MET_TOKENS = 100
"""Where the ranks of several processes meet in every step, which takes them long on a cpu."""
GROUP_BACK_S = 60.0
MIN_L2_HITS = 0.95
"""The least part that is found of what could come from a cache after a rank was lost."""
KILLED_OR_STOPPED = pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.part)]
)
Hook = Callable[[], Awaitable[None]]


def prompt(seed: int, length: int = 100) -> list[int]:
    return [(seed * 31 + i * i) % 199 for i in range(length)]


async def generate(
    engine: AsyncLLM, seed: int, hook: Hook | None = None, num_tokens: int = NUM_TOKENS
) -> RequestOutput:
    """All of one request's output; `hook` runs once some tokens are there."""
    output: RequestOutput | None = None
    async for output in engine.generate(
        prompt(seed), {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    ):
        if hook is not None and len(output.outputs[0].token_ids) > 20:
            await hook()
            hook = None
    assert output is not None
    return output


async def generate_all(
    engine: AsyncLLM, seeds: range, hook: Hook | None = None, num_tokens: int = NUM_TOKENS
) -> list[list[int]]:
    first, *others = seeds
    outputs = await asyncio.gather(
        generate(engine, first, hook, num_tokens),
        *(generate(engine, seed, num_tokens=num_tokens) for seed in others),
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


async def generate_met(engine: AsyncLLM, seeds: range, hook: Hook | None = None) -> list[list[int]]:
    """Generate as `generate_all` does, by ranks that meet."""
    return await generate_all(engine, seeds, hook, NUM_MET_TOKENS)


async def generate_through_a_kill(
    shared: SharedEngine, engine: AsyncLLM, seeds: range, lost: str
) -> list[list[int]]:
    """Generate as `generate_met` does while a rank is killed; its step group is soon back."""
    killed_s: list[float] = []

    async def kill() -> None:
        stats = await shared.handle.call("stats")
        assert stats["scheduler"]["num_requests_running"] == len(seeds)
        await send(shared, lost, signal.SIGKILL)()
        killed_s.append(time.monotonic())
        await shared.handle.call("wait_all_serving")

    tokens = await generate_met(engine, seeds, kill)
    assert time.monotonic() - killed_s[0] < GROUP_BACK_S
    return tokens


def send(shared: SharedEngine, actor: str, number: signal.Signals) -> Hook:
    async def hook() -> None:
        health = await shared.handle.call("health")
        os.kill(health[actor]["pid"], number)

    return hook


async def settle(shared: SharedEngine, actor: str | None = None) -> dict[str, dict[str, int]]:
    """Wait until all actors serve again and nothing is held; check every invariant."""
    async with asyncio.timeout(60):
        if actor is not None:
            while (await shared.handle.call("health"))[actor]["serves"]:
                await asyncio.sleep(0.05)

        await shared.handle.call("wait_all_serving")

        while True:
            stats = await shared.handle.call("stats")
            held = (
                stats["scheduler"]["l1_locked_pages"],
                stats["scheduler"]["transfers_in_flight"],
                stats["host"]["leases"],
                stats["host"]["pages_quarantined"],
                stats["host"]["pages_filling"] - stats["host"]["pages_granted"],
            )
            if not any(held):
                break
            await asyncio.sleep(0.05)

    await shared.handle.call("check")
    return stats


async def test_tokens_survive_sigkill_of_a_gpu_actor(shared_engine: SharedEngine) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        expected = await generate_all(engine, range(4))
        assert (
            await generate_all(engine, range(4), send(shared_engine, "gpu0", signal.SIGKILL))
            == expected
        )
        stats = await settle(shared_engine)
        assert stats["scheduler"]["lost_ranks"] == 1
        assert await generate_all(engine, range(4)) == expected


@pytest.mark.part
async def test_tokens_survive_a_gpu_actor_that_hangs(shared_engine: SharedEngine) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        expected = await generate_all(engine, range(10, 14))
        assert (
            await generate_all(engine, range(10, 14), send(shared_engine, "gpu1", signal.SIGSTOP))
            == expected
        )
        await settle(shared_engine)


@KILLED_OR_STOPPED
async def test_requests_do_not_notice_the_loss_of_host_memory(
    shared_engine: SharedEngine, number: signal.Signals
) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        expected = await generate_all(engine, range(20, 24))
        assert (
            await generate_all(engine, range(20, 24), send(shared_engine, "host", number))
            == expected
        )
        await until_restarted(shared_engine, "host")
        await settle(shared_engine)
        assert await generate_all(engine, range(20, 24)) == expected


@KILLED_OR_STOPPED
async def test_requests_do_not_notice_the_loss_of_storage(
    shared_engine: SharedEngine, number: signal.Signals
) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        expected = await generate_all(engine, range(30, 34))
        assert (
            await generate_all(engine, range(30, 34), send(shared_engine, "storage", number))
            == expected
        )
        await until_restarted(shared_engine, "storage")
        await settle(shared_engine)
        assert await generate_all(engine, range(30, 34)) == expected


@KILLED_OR_STOPPED
async def test_tokens_survive_the_loss_of_the_scheduler_whose_successor_is_warm(
    shared_engine: SharedEngine, number: signal.Signals
) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        expected = await generate_all(engine, range(40, 43))
        await settle(shared_engine)

        kill = send(shared_engine, "scheduler", number)
        assert await generate_all(engine, range(40, 42), kill) == expected[:2]
        await until_restarted(shared_engine, "scheduler")
        stats = await settle(shared_engine)
        output = await generate(engine, 42)

        assert list(output.outputs[0].token_ids) == expected[2]
        assert output.metrics.cached_tokens_by_source.get("l2", 0) > 0, (
            stats["restarts"],
            stats["host"],
        )


async def test_tokens_survive_the_loss_of_a_clients_link(shared_engine: SharedEngine) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        expected = await generate_all(engine, range(50, 54))

        async def close_link() -> None:
            client = await engine.connected()
            for line in client._askings._lines.up:
                assert line._link is not None
                line._link.close()

        assert await generate_all(engine, range(50, 54), close_link) == expected
        await settle(shared_engine)


async def test_vanished_client_leaves_nothing(shared_engine: SharedEngine) -> None:
    engine = await AsyncLLM.connect(shared_engine.name)
    tasks: list[asyncio.Task[Any]] = []

    async def vanish() -> None:
        (await engine.connected()).abandon()
        for task in tasks:
            task.cancel()

    tasks += [asyncio.create_task(generate(engine, seed, vanish)) for seed in range(54, 58)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)

    stats = await settle(shared_engine)
    assert (
        stats["scheduler"]["num_requests_running"]
        == stats["scheduler"]["num_requests_waiting"]
        == 0
    )
    await engine.disconnect()


async def test_actors_of_a_private_cluster_are_as_urgent_as_who_started_it(
    shared_engine: SharedEngine,
) -> None:
    health = await shared_engine.handle.call("health")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    priorities = {os.getpriority(os.PRIO_PROCESS, each["pid"]) for each in health.values()}
    assert priorities == {own}


@pytest.mark.part
async def test_requests_do_not_notice_that_storage_is_switched_detached_and_attached(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    section = shared_engine.config.cache.l3
    assert section is not None
    former, other = (
        section.model_dump(exclude_unset=True),
        {"backend": "file", "path": str(tmp_path)},
    )

    async def change() -> None:
        async with await AsyncLLM.connect(shared_engine.name) as engine:
            names = await engine.attach_storage(other)
            assert names == {"attached": "file", "detached": "file"}

        with pytest.raises(ConfigError, match="Did you mean"):
            await shared_engine.handle.call("attach_storage", {"backend": "file", "pth": "x"})

        await shared_engine.handle.call("flush")
        for _ in range(2):
            async with await AsyncLLM.connect(shared_engine.name) as engine:
                await engine.detach_storage()

        assert "storage" not in await shared_engine.handle.call("stats")
        assert await shared_engine.handle.call("attach_storage", former) == {
            "attached": "file",
            "detached": None,
        }

    async with await AsyncLLM.connect(shared_engine.name) as engine:
        expected = await generate_all(engine, range(60, 64))
        await shared_engine.handle.call("flush")
        assert await generate_all(engine, range(60, 64), change) == expected
        await settle(shared_engine)
        await shared_engine.handle.call("flush")
        assert await generate_all(engine, range(60, 64)) == expected
        output = await generate(engine, 60)
        assert output.metrics.cached_tokens_by_source.get("computed:not_found", 0) == 0
    restarts_before.pop("storage", None)


async def until_restarted(shared: SharedEngine, actor: str) -> None:
    """Wait until the fault that was just made has been found."""
    before = restarts_before.get(actor, 0)
    async with asyncio.timeout(60):
        while (await shared.handle.call("stats"))["restarts"][actor] <= before:
            await asyncio.sleep(0.05)
    restarts_before[actor] = (await shared.handle.call("stats"))["restarts"][actor]


restarts_before: dict[str, int] = {}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.multi_gpu)])
def lane(
    request: pytest.FixtureRequest,
    ray_cluster: PrivateCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedEngine]:
    """An engine of one lane of `NUM_RANKS` ranks."""
    folder = tmp_path_factory.mktemp("lane")
    sizes = {"max_position_embeddings": 2048, "num_attention_heads": 3 * NUM_RANKS}
    # Another model than that of the engine which tests share, as its L2 is another one.
    make_checkpoint(folder, Family.QWEN3, seed=8, **sizes)
    config = load_config(
        {
            "model": {"path": str(folder), "device": request.param, "dtype": "float32"},
            "parallel": {"tp": NUM_RANKS},
            "cache": {
                "page_size": 16,
                "l1": {"num_pages": 256},
                "l2": {"bytes_per_node": "16MiB", "keep_s": 0},
                "load": "always",
            },
        }
    )
    handle = start_engine(config, own_name("lane"), supervision=IMPATIENT)
    yield SharedEngine(handle, config)
    asyncio.run(handle.shutdown())


@pytest.mark.part
@pytest.mark.parametrize(("lost", "first_seed"), [("gpu0", 70), ("gpu1", 90)])
async def test_tokens_and_l2_survive_sigkill_of_one_rank_of_a_lane(
    lane: SharedEngine, lost: str, first_seed: int
) -> None:
    before, through = (range(first, first + 4) for first in (first_seed, first_seed + 10))
    async with await AsyncLLM.connect(lane.name) as engine:
        known = await generate_met(engine, before)
        expected = await generate_met(engine, through)
        await settle(lane)
        incarnations = await incarnations_of(lane)
        assert await generate_through_a_kill(lane, engine, through, lost) == expected
        assert await incarnations_of(lane) == [number + 1 for number in incarnations]

        # L1 went with the ranks.
        again = (generate(engine, seed, num_tokens=NUM_MET_TOKENS) for seed in before)
        outputs = await asyncio.gather(*again)
        assert [list(output.outputs[0].token_ids) for output in outputs] == known
        num_hits = sum(each.metrics.cached_tokens_by_source.get("l2", 0) for each in outputs)
        assert num_hits >= MIN_L2_HITS * sum(len(prompt(seed)) // 16 * 16 for seed in before)
        await settle(lane)


async def incarnations_of(lane: SharedEngine) -> list[int]:
    """The incarnations of the lane's ranks."""
    health = await lane.handle.call("health")
    return [health[f"gpu{rank}"]["incarnation"] for rank in range(NUM_RANKS)]
