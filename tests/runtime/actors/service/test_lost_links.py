"""The way to an engine of a service is lost, which says nothing of the engine."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from raydix.errors import EngineDead
from tests.runtime.actors.service.made_up_service import (
    NAME,
    FakeCluster,
    FakeEngine,
    running,
    serving,
    states,
    until,
)

ONE, OTHER, NEXT = f"{NAME}/1", f"{NAME}/2", f"{NAME}/3"


async def test_an_engine_whose_link_is_lost_is_away_until_it_answers_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster("abc")
    async with running(cluster, 2) as (service, _):
        await until(lambda: len(serving(service)) == 2)
        cluster.made[0].cut()
        await until(lambda: states(service) == {ONE: "away", OTHER: "serves"})
        await asyncio.sleep(0.05)
        assert states(service) == {ONE: "away", OTHER: "serves"}

        cluster.made[0].mend()
        await until(lambda: states(service) == {ONE: "serves", OTHER: "serves"})
        cluster.made[0].cut()
        await until(lambda: states(service)[ONE] == "away")
        cluster.made[0].mend()
        await until(lambda: states(service)[ONE] == "serves")
        assert len(cluster.there) == len(cluster.made) == 2
    told = [each.levelno for each in caplog.records if "is lost" in each.getMessage()]
    assert told == [logging.WARNING] * 2, "once for each loss"


def end(cluster: FakeCluster, engine: FakeEngine) -> None:
    """Ray lists the engine no more."""
    engine.kill()


def lose_node(cluster: FakeCluster, engine: FakeEngine) -> None:
    """Ray takes the engine's node for lost, and has not seen yet what ran there."""
    cluster.live_nodes = cluster.live_nodes.replace(engine.node, "")


@pytest.mark.parametrize("befall", [end, lose_node])
async def test_an_engine_that_is_away_has_ended_once_ray_says_so(
    befall: Callable[[FakeCluster, FakeEngine], None],
) -> None:
    cluster = FakeCluster("abc")
    async with running(cluster, 2) as (service, _):
        await until(lambda: len(serving(service)) == 2)
        cluster.made[0].cut()
        await until(lambda: states(service)[ONE] == "away")
        befall(cluster, cluster.made[0])
        await until(lambda: states(service) == {OTHER: "serves", NEXT: "serves"})
        assert cluster.made[0].is_over


async def test_an_engine_that_was_away_has_ended_once_its_supervisor_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster("abc")
    async with running(cluster, 2) as (service, _):
        await until(lambda: len(serving(service)) == 2)
        # Ray lists a Supervisor that has given up for as long as its process is there.
        monkeypatch.setattr(cluster, "engines", lambda: [each.name for each in cluster.made])
        victim = cluster.made[0]
        victim.cut()
        victim.finish(EngineDead(f"engine {victim.name} has given up: gpu0 ended 6 times"))
        await until(lambda: states(service)[ONE] == "away")
        await asyncio.sleep(0.05)
        assert states(service)[ONE] == "away", "nobody can know yet"
        victim.mend()
        await until(lambda: states(service) == {OTHER: "serves", NEXT: "serves"})


async def test_an_engine_that_is_away_is_not_replaced_while_ray_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster("abc")
    async with running(cluster, 2) as (service, _):
        await until(lambda: len(serving(service)) == 2)

        def engines() -> list[str]:
            raise EngineDead("the head of the cluster does not answer")

        monkeypatch.setattr(cluster, "engines", engines)
        cluster.made[0].cut()
        await until(lambda: states(service)[ONE] == "away")
        await asyncio.sleep(0.05)
        assert len(cluster.there) == 2
        cluster.made[0].mend()
        await until(lambda: states(service) == {ONE: "serves", OTHER: "serves"})


async def test_an_engine_that_stays_away_ends_with_its_service_once_it_could_have_drained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, task):
        await until(lambda: len(serving(service)) == 2)
        cluster.made[0].cut()
        await until(lambda: states(service)[ONE] == "away")
        service.stop()
        await task
        assert cluster.made[0].num_releases == 1
    await until(lambda: cluster.there == [])
    assert f"engine {ONE} is to end, and is away" in caplog.text
    assert f"engine {ONE} was away for so long that Ray ends it" in caplog.text


async def test_an_engine_that_is_away_as_it_is_to_end_drains_once_it_is_reached() -> None:
    cluster = FakeCluster("ab")
    cluster.drain_s = 600.0
    async with running(cluster, 2) as (service, task):
        await until(lambda: len(serving(service)) == 2)
        victim = cluster.made[0]
        victim.cut()
        await until(lambda: states(service)[ONE] == "away")
        service.stop()
        await asyncio.sleep(0.05)
        assert states(service)[ONE] == "drains"
        assert not victim.is_over, "it may serve whom it can reach"
        assert victim.num_releases == 0
        victim.mend()
        await task
        assert victim.is_draining
        assert victim.num_releases == 1


async def test_a_link_that_is_lost_in_a_drain_does_not_end_the_engine_in_the_middle() -> None:
    cluster = FakeCluster("ab")
    cluster.drain_s = 600.0
    async with running(cluster, 2) as (service, task):
        await until(lambda: len(serving(service)) == 2)
        victim = cluster.made[0]
        victim.drains_until = asyncio.get_running_loop().create_future()
        service.stop()
        await until(lambda: victim.is_draining)
        victim.cut()
        await asyncio.sleep(0.05)
        assert victim.num_releases == 0, "its requests are about to end"
        # It has drained, and Ray lists it no more.
        victim.kill()
        await task
        assert victim.num_releases == 1


async def test_no_engine_ends_for_load_while_one_is_away_that_may_be_busy() -> None:
    cluster = FakeCluster("abcd")
    async with running(cluster, 1, most=2) as (service, _):
        await service.serving()
        cluster.made[0].load = (5, 4)
        await until(lambda: len(serving(service)) == 2)
        cluster.made[0].cut()
        await until(lambda: states(service)[ONE] == "away")
        await asyncio.sleep(0.05)
        assert states(service) == {ONE: "away", OTHER: "serves"}

        cluster.made[0].mend()
        cluster.made[0].load = (0, 0)
        await until(lambda: len(cluster.there) == 1)
