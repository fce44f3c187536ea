"""An engine sleeps and wakes: no request fails, no token differs, and what L2 had is found."""

import asyncio
from typing import Any

import pytest
import torch

from raydix.errors import EngineAsleep
from raydix.runtime.actors import torch_model
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.tiers import parked_weights, peer_pools
from raydix.runtime.tiers.memory_region import HostRegion, MovingRegion
from tests.exactness.engines import (
    CACHING_KINDS,
    DEVICES,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import References

PROMPTS = make_prompts(83, [100, 90, 80, 70], num_shared=40)
NUM_TOKENS = 8
NUM_CACHEABLE = sum(map(cacheable_tokens, PROMPTS))


async def held_bytes(engine: InProcessEngine) -> int:
    return int((await engine.stats())["gpu0"]["held_bytes"])


@pytest.mark.part
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", CACHING_KINDS)
async def test_what_was_cached_is_found_after_the_wake_and_every_token_is_exact(
    family: Family, device: str, weights: bool, references: References
) -> None:
    reference = references(family)
    expected = reference.expect(PROMPTS)
    model = {"device": device, "dtype": "float32"}
    config = engine_config(reference.folder, model=model)
    async with in_process_engine(config) as engine:
        await assert_all_exact(engine, expected, await run(engine, PROMPTS, NUM_TOKENS))
        before = await held_bytes(engine)

        slept = await engine.fall_asleep(weights)

        assert slept["held_bytes"] == before
        assert slept["left_bytes"] == await held_bytes(engine) < before
        assert slept["lost_pages"] == 0
        if weights:
            assert slept["left_bytes"] < 0.05 * before
        await engine.check()

        await engine.wake()

        assert await held_bytes(engine) == before
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l2") >= 0.95 * NUM_CACHEABLE
        await engine.check()


async def test_requests_that_come_while_it_sleeps_are_answered_after_the_wake(
    references: References,
) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    async with in_process_engine(engine_config(reference.folder)) as engine:
        for weights in (False, True, True):
            running = asyncio.create_task(run(engine, PROMPTS, NUM_TOKENS))
            await engine.fall_asleep(weights)
            waiting = asyncio.create_task(run(engine, PROMPTS, NUM_TOKENS))
            await engine.wake()
            for outputs in (await running, await waiting):
                await assert_all_exact(engine, expected, outputs)
        await engine.check()


async def test_requests_that_are_parked_in_mid_output_go_on_exactly(
    references: References,
) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    config = engine_config(reference.folder, scheduler={"max_drain_s": 0.0})
    async with in_process_engine(config) as engine:
        for weights in (False, True):
            running = asyncio.create_task(run(engine, PROMPTS, NUM_TOKENS))
            while not (await engine.stats())["scheduler"]["num_requests_running"]:
                await asyncio.sleep(0.001)
            await engine.fall_asleep(weights)
            assert not running.done()
            await engine.wake()
            await assert_all_exact(engine, expected, await running)
        await engine.check()


async def test_requests_that_wait_too_long_for_the_wake_are_refused(
    references: References,
) -> None:
    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, scheduler={"max_asleep_wait_s": 0.0})
    async with in_process_engine(config) as engine:
        await engine.fall_asleep(True)
        with pytest.raises(EngineAsleep, match=r"The engine is asleep.*raydix wake"):
            await run(engine, PROMPTS[:1], NUM_TOKENS)
        await engine.wake()
        assert len(await run(engine, PROMPTS, NUM_TOKENS)) == len(PROMPTS)


@pytest.mark.part
@pytest.mark.parametrize("parallel", [{"tp": 2}, {"dp": 2, "ep": 2}])
async def test_ranks_that_step_together_sleep_and_wake_together(
    parallel: dict[str, int], references: References
) -> None:
    reference = references(Family.DEEPSEEK_V3)
    expected = reference.expect(PROMPTS)
    config = engine_config(reference.folder, parallel=parallel)
    async with in_process_engine(config) as engine:
        for _ in range(2):
            await assert_all_exact(engine, expected, await run(engine, PROMPTS, NUM_TOKENS))
            await engine.fall_asleep(True)
            await engine.wake()
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l2") > 0
        await engine.check()


async def test_an_engine_that_sleeps_stops(references: References) -> None:
    config = engine_config(references(Family.QWEN3).folder)
    async with in_process_engine(config, drain_timeout_s=1.0) as engine:
        await engine.fall_asleep(True)
        assert engine.spawner.latest(ActorKind.GPU) is not None


async def test_sleep_twice_and_wake_twice_change_nothing(references: References) -> None:
    config = engine_config(references(Family.QWEN3).folder)
    async with in_process_engine(config) as engine:
        await engine.wake()
        first = await engine.fall_asleep(False)
        second = await engine.fall_asleep(False)
        assert first["found"] == "awake"
        assert second == first | {"found": "asleep"}
        woken = [await engine.wake() for _ in range(2)]
        assert [each["found"] for each in woken] == ["asleep", "awake"]
        assert len(await run(engine, PROMPTS, NUM_TOKENS)) == len(PROMPTS)


async def test_an_engine_without_room_for_its_pages_sleeps_on_and_wakes_later(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_arguments: object, **_options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    config = engine_config(references(Family.QWEN3).folder)
    async with in_process_engine(config) as engine:
        await engine.fall_asleep(False)
        with monkeypatch.context() as patch:
            patch.setattr(HostRegion, "take_again", is_full)
            with pytest.raises(EngineAsleep, match="no room for"):
                await engine.wake()
        await engine.wake()
        assert len(await run(engine, PROMPTS, NUM_TOKENS)) == len(PROMPTS)


class Runners:
    """Counts the runners that are made, with what is captured of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_made = 0
        make = torch_model._make_runner

        def count(*arguments: Any, **options: Any) -> ModelRunner:
            self.num_made += 1
            return make(*arguments, **options)

        monkeypatch.setattr(torch_model, "_make_runner", count)


@pytest.mark.parametrize("device", DEVICES)
async def test_a_model_whose_memory_keeps_its_place_is_made_once_for_all_wakes(
    device: str, references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    runners = Runners(monkeypatch)
    config = engine_config(reference.folder, model={"device": device, "dtype": "float32"})
    async with in_process_engine(config) as engine:
        num_made = runners.num_made
        for weights in (True, False, True):
            await assert_all_exact(engine, expected, await run(engine, PROMPTS, NUM_TOKENS))
            await engine.fall_asleep(weights)
            await engine.wake()
        await assert_all_exact(engine, expected, await run(engine, PROMPTS, NUM_TOKENS))
        assert runners.num_made == num_made
        await engine.check()


@pytest.mark.parametrize("device", DEVICES)
async def test_where_memory_moves_all_is_made_anew_and_every_token_is_exact(
    device: str, references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (peer_pools, parked_weights):
        monkeypatch.setattr(module, "make_region", MovingRegion)
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    runners = Runners(monkeypatch)
    config = engine_config(reference.folder, model={"device": device, "dtype": "float32"})
    async with in_process_engine(config) as engine:
        num_made = runners.num_made
        for weights in (True, False):
            await assert_all_exact(engine, expected, await run(engine, PROMPTS, NUM_TOKENS))
            slept = await engine.fall_asleep(weights)
            assert slept["left_bytes"] < slept["held_bytes"]
            await engine.wake()
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l2") >= 0.95 * NUM_CACHEABLE
        assert runners.num_made == num_made + 2
