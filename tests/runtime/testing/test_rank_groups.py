"""Ranks that step together, and live and end together, in an engine in one process.

Those of a lane, and with experts over ranks those of all lanes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.gpu_model import LoadedGpuModel, RankPlace
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.testing.engine import InProcessEngine
from raydix.runtime.testing.sleeping_runner import build_sleeping_model
from raydix.runtime.testing.spawner import InProcessActor
from tests.runtime.testing.rank_groups import Brake, Groups

CONFIG = load_config(
    {
        "model": {"path": "unused", "max_model_len": 256},
        "parallel": {"dp": 2, "tp": 2},
        "cache": {"l1": {"num_pages": 64}, "l2": None},
    }
)
SHARING_EXPERTS = load_config(
    {
        "model": {"path": "unused", "max_model_len": 256},
        "parallel": {"dp": 4, "ep": 4},
        "cache": {"l1": {"num_pages": 64}, "l2": None},
    }
)
BUILD = partial(build_sleeping_model, step_s=0.002)
PROMPT_TOKENS = 40
NUM_TOKENS = 100
BRAKE_AT = PROMPT_TOKENS + 10
"""Where requests wait for the end of a rank, which may take longer than all of their steps."""
WAIT_S = 20


async def generate(engine: InProcessEngine, first_token: int) -> list[int]:
    """The answer to some prompt."""
    params = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "output_kind": "final"}
    prompt = list(range(first_token, first_token + PROMPT_TOKENS))
    [output] = [output async for output in engine.client.generate(prompt, params)]
    return output.outputs[0].token_ids


async def wait_running(engine: InProcessEngine, num_requests: int) -> None:
    """Return once so many requests run, and have tokens."""
    async with asyncio.timeout(WAIT_S):
        while True:
            stats = (await engine.stats())["scheduler"]
            has_tokens = stats.get("generation_tokens", 0) > 2 * num_requests
            if stats["num_requests_running"] == num_requests and has_tokens:
                return
            await asyncio.sleep(0.001)


async def wait_lost(engine: InProcessEngine, num_losses: int) -> None:
    """Return once the Scheduler has lost ranks so often."""
    async with asyncio.timeout(WAIT_S):
        while (await engine.stats())["scheduler"].get("lost_ranks", 0) < num_losses:
            await asyncio.sleep(0.001)


async def test_lanes_of_two_ranks_serve() -> None:
    async with Groups(CONFIG, BUILD).engine() as engine:
        answers = await asyncio.gather(*(generate(engine, 100 * n) for n in range(4)))
        stats = await engine.check()

    assert [len(answer) for answer in answers] == [NUM_TOKENS] * 4
    assert stats["scheduler"]["generation_tokens"] == 4 * NUM_TOKENS
    steps = [stats[f"gpu{rank}"]["num_steps"] for rank in range(4)]
    assert steps[0] == steps[1] > 0
    assert steps[2] == steps[3] > 0


async def kill(rank: InProcessActor) -> None:
    rank.kill()


async def break_link(rank: InProcessActor) -> None:
    link = rank.plain._serving()._link
    assert link is not None, "it serves"
    link.close()


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("end", [kill, break_link])
async def test_a_group_whose_one_rank_is_lost_is_restarted_and_its_requests_go_on(
    end: Callable[[InProcessActor], Awaitable[None]], rank: int
) -> None:
    brake = Brake(BRAKE_AT)
    groups = Groups(CONFIG, brake.on(BUILD))
    async with groups.engine() as engine:
        requests = [asyncio.create_task(generate(engine, 100 * n)) for n in range(4)]
        await wait_running(engine, 4)

        await end(groups.spawner.ranks[rank, 1])
        await wait_lost(engine, 1)
        brake.take_off()

        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*requests)
            await groups.supervisor.wait_all_serving()
        assert [len(answer) for answer in answers] == [NUM_TOKENS] * 4
        assert await groups.incarnations() == [1, 1, 2, 2]

        # Both serve again, and nothing is left of what was lost.
        more = await asyncio.gather(*(generate(engine, 100 * n + 50) for n in range(4)))
        assert [len(answer) for answer in more] == [NUM_TOKENS] * 4
        await engine.check()
        assert await groups.incarnations() == [1, 1, 2, 2]


async def test_a_group_is_lost_again_and_again() -> None:
    brake = Brake(BRAKE_AT)
    groups = Groups(CONFIG, brake.on(BUILD))
    async with groups.engine() as engine:
        for generation in range(1, 4):
            brake.put_on()
            requests = [asyncio.create_task(generate(engine, 100 * n)) for n in range(4)]
            await wait_running(engine, 4)
            await kill(groups.spawner.ranks[generation % 2, generation])
            await wait_lost(engine, generation)
            brake.take_off()
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*requests)
                await groups.supervisor.wait_all_serving()

        assert await groups.incarnations() == [4, 4, 1, 1]
        await engine.check()


@pytest.mark.parametrize("lost", [0, 3])
async def test_a_rank_that_never_comes_up_ends_the_engine_after_max_crashes(lost: int) -> None:
    loads: list[int] = []

    def build(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        loads.append(place.rank)
        if place.rank == lost:
            raise RuntimeError("no such device")
        return BUILD(config, place)

    groups = Groups(CONFIG, build, Supervision(first_backoff_s=0.0, max_crashes=3))

    with pytest.raises(EngineDead, match="ended 4 times: no such device"):
        await groups.supervisor.start()

    assert loads.count(lost) == 4
    # It may end before its peer has begun to load.
    assert loads.count(lost ^ 1) <= 4
    assert loads.count((lost + 2) % 4) == 1


async def test_what_one_rank_refuses_ends_the_engine_at_once() -> None:
    def build(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        if place.rank == 1:
            raise ConfigError("no room for a page")
        return BUILD(config, place)

    with pytest.raises(ConfigError, match="no room for a page"):
        await Groups(CONFIG, build).supervisor.start()


async def test_ranks_that_share_experts_do_the_same_steps_idle_ones_too() -> None:
    async with Groups(SHARING_EXPERTS, BUILD).engine() as engine:
        answers = await asyncio.gather(*(generate(engine, 100 * n) for n in range(2)))
        stats = await engine.check()

    assert [len(answer) for answer in answers] == [NUM_TOKENS] * 2
    steps = {stats[f"gpu{rank}"]["num_steps"] for rank in range(4)}
    assert len(steps) == 1
    assert min(stats[f"gpu{rank}"]["compute_s"] for rank in range(4)) > 0.002 * NUM_TOKENS


@pytest.mark.parametrize("end", [kill, break_link])
async def test_all_ranks_that_share_experts_are_restarted_when_one_is_lost(
    end: Callable[[InProcessActor], Awaitable[None]],
) -> None:
    brake = Brake(BRAKE_AT)
    groups = Groups(SHARING_EXPERTS, brake.on(BUILD))
    async with groups.engine() as engine:
        for generation in (1, 2):
            brake.put_on()
            requests = [asyncio.create_task(generate(engine, 100 * n)) for n in range(6)]
            await wait_running(engine, 6)
            await end(groups.spawner.ranks[generation, generation])
            await wait_lost(engine, generation)
            brake.take_off()
            async with asyncio.timeout(WAIT_S):
                answers = await asyncio.gather(*requests)
                await groups.supervisor.wait_all_serving()
            assert [len(answer) for answer in answers] == [NUM_TOKENS] * 6
            assert await groups.incarnations() == [generation + 1] * 4
        await engine.check()


@pytest.mark.parametrize(
    ("config", "meetings"),
    [
        (CONFIG, ["group0-1", "group0-1", "group1-1", "group1-1"]),
        (SHARING_EXPERTS, ["group0-1"] * 4),
    ],
)
async def test_ranks_of_a_group_meet_by_one_file(config: EngineConfig, meetings: list[str]) -> None:
    places: dict[int, RankPlace] = {}

    def build(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        places[place.rank] = place
        return BUILD(config, place)

    async with Groups(config, build).engine():
        pass

    files = [places[rank].meeting for rank in range(4)]
    assert [str(file).rsplit("/", 1)[-1] for file in files] == meetings
