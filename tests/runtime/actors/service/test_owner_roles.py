"""Roles of the engines of a service whose nodes and engines are made up."""

import asyncio

import pytest

from tests.runtime.actors.service.made_up_service import (
    FakeCluster,
    former_of,
    roles_on,
    running,
    serving,
    until,
)


async def test_a_lost_engine_for_prefill_has_a_follower_of_its_role() -> None:
    cluster = FakeCluster("abc")
    async with running(cluster, 2, num_prefill=1) as (service, _):
        await until(lambda: roles_on(service) == {"a": "both", "b": "prefill", "c": "both"})
        assert service.describe()["wanted"] == 3
        cluster.live_nodes = "acd"
        next(each for each in cluster.there if each.node == "b").kill()
        await until(lambda: roles_on(service) == {"a": "both", "c": "both", "d": "prefill"})


@pytest.mark.parametrize("max_per_node", [1, 2])
async def test_a_later_version_has_the_roles_of_the_former_where_these_were(
    max_per_node: int,
) -> None:
    cluster = FakeCluster("abc")
    cluster.max_per_node = max_per_node
    async with running(cluster, 2, num_prefill=1) as (old, old_task):
        await until(lambda: len(serving(old)) == 3)
        before = roles_on(old)
        async with running(cluster, 2, await former_of(), num_prefill=1) as (new, _):
            while not old_task.done():
                whole = [*roles_on(old).values(), *roles_on(new).values()].count("both")
                assert whole >= 1
                await asyncio.sleep(0)
            await until(lambda: len(serving(new)) == 3)
            assert sorted(roles_on(new).values()) == sorted(before.values())
            if max_per_node == 2:
                assert roles_on(new) == before


async def test_a_crowd_adds_no_engine_for_prefill() -> None:
    cluster = FakeCluster("abcd")
    async with running(cluster, 1, most=2, num_prefill=1) as (service, _):
        await until(lambda: roles_on(service) == {"a": "both", "b": "prefill"})
        cluster.made[0].load = (5, 4)
        await until(lambda: roles_on(service) == {"a": "both", "b": "prefill", "c": "both"})
        for each in cluster.made:
            each.load = (0, 0)
        await until(lambda: len(cluster.there) == 2)
        assert roles_on(service) == {"a": "both", "b": "prefill"}
