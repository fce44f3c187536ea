"""A service while Ray does not answer: its engines serve on, and it looks again."""

import asyncio
import logging
from typing import Any

import pytest

from raydix.errors import EngineDead
from tests.runtime.actors.service.made_up_service import (
    NAME,
    FakeCluster,
    running,
    serving,
    states,
    until,
)

ONE, OTHER, NEXT = f"{NAME}/1", f"{NAME}/2", f"{NAME}/3"


def silent() -> Any:
    raise EngineDead("Ray does not say it")


@pytest.mark.parametrize("question", ["nodes", "engines"])
async def test_a_question_to_ray_that_fails_ends_no_engine_and_is_asked_again(
    question: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, task):
        await until(lambda: len(serving(service)) == 2)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(cluster, question, silent)
            cluster.made[0].kill()
            await asyncio.sleep(0.1)
            assert not task.done()
            assert states(service) == {OTHER: "serves"}
        await until(lambda: states(service) == {OTHER: "serves", NEXT: "serves"})
    told = [each.levelno for each in caplog.records if "Ray does not say it" in each.getMessage()]
    assert told == [logging.WARNING], "it is told once"


async def test_a_service_stops_although_ray_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, task):
        await until(lambda: len(serving(service)) == 2)
        monkeypatch.setattr(cluster, "nodes", silent)
        service.stop()
        await task
    assert cluster.there == []


async def test_an_engine_that_cannot_give_all_back_ends_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, task):
        await until(lambda: len(serving(service)) == 2)

        def release() -> None:
            raise OSError("what ray.kill raises while the head does not answer")

        monkeypatch.setattr(cluster.made[0], "release", release)
        cluster.made[0].kill()
        await until(lambda: states(service) == {OTHER: "serves", NEXT: "serves"})
        assert not task.done()
    assert f"engine {ONE} has not ended well" in caplog.text


async def test_the_table_is_there_while_ray_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster("a")
    async with running(cluster, 1) as (service, _):
        await until(lambda: len(serving(service)) == 1)
        monkeypatch.setattr(cluster, "addresses", silent)
        [row] = (await service.look())["engines"]
    assert (row["name"], row["address"], row["running"]) == (ONE, None, 0)
