"""A service whose nodes and engines are made up."""

import asyncio
from typing import Any

import pytest

from raydix.errors import BadRequest, ConfigError, EngineDead
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import find_record
from raydix.runtime.actors.service import former, owner
from raydix.runtime.actors.service.desk import find_former
from raydix.runtime.config.policies import EngineRole
from raydix.version import VERSION
from tests.runtime.actors.service.made_up_service import (
    NAME,
    WAIT_S,
    FakeCluster,
    former_of,
    running,
    serving,
    until,
)


async def test_one_engine_serves_on_each_of_so_many_nodes() -> None:
    cluster = FakeCluster("abc")
    async with running(cluster, 2) as (service, _):
        await service.serving()
        await until(lambda: len(serving(service)) == 2)
        assert serving(service) == {"a": f"{NAME}/1", "b": f"{NAME}/2"}
    assert cluster.there == []


async def test_the_engine_of_a_lost_node_comes_up_elsewhere() -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, _):
        await until(lambda: len(serving(service)) == 2)
        cluster.live_nodes = "b"
        cluster.made[0].kill()
        await until(lambda: list(serving(service)) == ["b"])
        cluster.live_nodes = "bc"
        await until(lambda: serving(service) == {"b": f"{NAME}/2", "c": f"{NAME}/3"})


async def test_a_start_that_fails_for_what_the_user_wrote_ends_the_service() -> None:
    cluster = FakeCluster("ab")

    def fail(node: str) -> None:
        raise ConfigError("cache.page_size is 24")

    cluster.fail = fail
    async with running(cluster, 2) as (_, task):
        with pytest.raises(ConfigError, match="page_size"):
            await task


async def test_a_node_where_starts_fail_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster("ab")
    failures = iter([EngineDead("its process ended")])

    def fail(node: str) -> None:
        if node == "a" and (error := next(failures, None)) is not None:
            raise error

    cluster.fail = fail
    async with running(cluster, 2) as (service, _):
        await until(lambda: set(serving(service)) == {"a", "b"})


@pytest.mark.parametrize("max_per_node", [1, 2])
async def test_a_later_version_comes_although_a_node_is_lost_meanwhile(max_per_node: int) -> None:
    cluster = FakeCluster("abc")
    cluster.max_per_node = max_per_node
    async with running(cluster, 3) as (old, old_task):
        await until(lambda: len(serving(old)) == 3)
        former = await former_of()
        cluster.live_nodes = "ab"
        next(each for each in cluster.made if each.node == "c").kill()
        async with running(cluster, 3, former) as (new, _):
            await until(lambda: old_task.done() and set(serving(new)) == {"a", "b"})


async def test_an_earlier_version_that_was_once_too_busy_to_answer_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, answers = former.call_supervisor, iter([False, True, False])

    async def call_busy(*arguments: Any) -> Any:
        if not next(answers, True):
            raise EngineDead("it hung up on us: the handshake took too long")
        return await call(*arguments)

    monkeypatch.setattr(former, "call_supervisor", call_busy)
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (old, old_task):
        await until(lambda: len(serving(old)) == 2)
        async with running(cluster, 2, await former_of()) as (new, _):
            await until(lambda: old_task.done() and len(serving(new)) == 2)


async def test_a_later_version_replaces_engines_one_after_the_other() -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (old, old_task):
        await until(lambda: len(serving(old)) == 2)
        fewest, async_former = 2, await former_of()
        async with running(cluster, 2, async_former) as (new, _):
            while not old_task.done():
                fewest = min(fewest, len(serving(old)) + len(serving(new)))
                await asyncio.sleep(0)
            await until(lambda: len(serving(new)) == 2)
            assert fewest >= 2
            # The name is the new version's now.
            await until(lambda: find_record(NAME) is not None)
            assert sorted(cluster.engines()) == [f"{NAME}/3", f"{NAME}/4"]


async def test_where_there_is_no_room_beside_an_engine_that_one_ends_first() -> None:
    cluster = FakeCluster("ab")
    cluster.max_per_node = 1
    async with running(cluster, 2) as (old, old_task):
        await until(lambda: len(serving(old)) == 2)
        async with running(cluster, 2, await former_of()) as (new, _):
            while not old_task.done():
                assert serving(old) or serving(new)
                await asyncio.sleep(0)
            await until(lambda: len(serving(new)) == 2)


async def test_a_service_is_as_before_when_the_later_version_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "_GIVING_WAY_S", 0.3)
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, _):
        await until(lambda: len(serving(service)) == 2)
        await (await former_of()).keep({EngineRole.BOTH: 1})
        await until(lambda: len(serving(service)) == 1)
        with pytest.raises(ConfigError, match="being replaced"):
            await find_former(NAME)
        await until(lambda: len(serving(service)) == 2)


async def test_a_stop_by_name_ends_all_engines() -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, task):
        await until(lambda: len(serving(service)) == 2)
        await former_of()
        record = find_record(NAME)
        assert record is not None
        with pytest.raises(BadRequest, match="several engines"):
            await call_supervisor(NAME, record, "client_facts")
        await call_supervisor(NAME, record, "shutdown")
        await task
        assert cluster.there == []


async def test_engines_come_with_a_crowd_and_go_with_it() -> None:
    cluster = FakeCluster("abcd")
    async with running(cluster, 1, most=3) as (service, _):
        await service.serving()
        cluster.made[0].load = (5, 4)
        await until(lambda: len(serving(service)) == 3)
        cluster.made[0].load = (0, 4)
        await until(lambda: len(cluster.there) == 2)
        # One engine could not hold them: four slots are to be half empty.
        assert len(serving(service)) == 2
        cluster.made[0].load = (0, 0)
        await until(lambda: len(cluster.there) == 1)


async def test_a_later_version_begins_with_as_many_as_there_are() -> None:
    cluster = FakeCluster("abcd")
    async with running(cluster, 3) as (old, old_task):
        await until(lambda: len(serving(old)) == 3)
        former = await former_of()
        async with running(cluster, 1, former, most=4) as (new, _):
            assert new.describe()["wanted"] == 3
            await old_task


@pytest.mark.parametrize("fingerprint", ["f1", "f2"])
async def test_a_version_leaves_the_former_until_clients_have_found_it(
    fingerprint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster("ab")
    monkeypatch.setattr(owner, "_FOUND_S", WAIT_S)
    async with running(cluster, 2) as (old, old_task):
        await until(lambda: len(serving(old)) == 2)
        cluster.fingerprint = fingerprint
        async with running(cluster, 2, await former_of()) as (new, _):
            await until(lambda: len(serving(new)) == 2)
            await asyncio.sleep(0.05)
            assert len(serving(old)) == 2, "nobody may know of the new engines yet"

            monkeypatch.setattr(owner, "_FOUND_S", 0.0)
            await old_task
            assert len(serving(new)) == 2


async def test_the_former_starts_no_engine_again_while_clients_look_for_its_follower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "_FOUND_S", 0.1)
    cluster = FakeCluster("abc")
    cluster.max_per_node = 1
    async with running(cluster, 3) as (old, old_task):
        await until(lambda: len(serving(old)) == 3)
        async with running(cluster, 3, await former_of()) as (new, _):
            while not old_task.done():
                assert "starts" not in {each["state"] for each in old.describe()["engines"]}
                await asyncio.sleep(0)
            await until(lambda: len(serving(new)) == 3)


async def test_numbers_of_engines_that_ray_does_not_know_yet_are_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 1) as (old, old_task):
        await until(lambda: len(serving(old)) == 1)
        monkeypatch.setattr(cluster, "engines", list)
        async with running(cluster, 1, await former_of()) as (new, _):
            await old_task
            assert list(serving(new).values()) == [f"{NAME}/2"]


async def test_engines_that_find_no_node_are_told_until_one_joins() -> None:
    cluster = FakeCluster("a")
    async with running(cluster, 3) as (service, _):
        await until(lambda: len(serving(service)) == 1)
        [told] = service.describe()["waiting"]
        assert told["engines"] == 2
        assert "the cluster has 1" in told["for"]

        cluster.live_nodes = "abc"
        await until(lambda: len(serving(service)) == 3)
        await until(lambda: service.describe()["waiting"] == [])


async def test_the_table_has_the_load_of_each_engine_and_where_it_runs() -> None:
    cluster = FakeCluster("ab")
    async with running(cluster, 2) as (service, _):
        await until(lambda: len(serving(service)) == 2)
        cluster.made[0].load = (5, 4)
        record = find_record(NAME)
        assert record is not None
        one, other = (await call_supervisor(NAME, record, "look_at_service"))["engines"]
    assert (one["name"], one["node"], one["address"]) == (f"{NAME}/1", "a", "10.0.0.97")
    assert (one["waiting"], one["running"], other["waiting"]) == (5, 4, 0)
    assert one["up_s"] >= 0.0
    assert (one["fingerprint"], one["version"]) == ("f1", VERSION)


async def test_an_engine_that_is_too_busy_to_answer_is_in_the_table_without_its_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster("a")
    async with running(cluster, 1) as (service, _):
        await until(lambda: len(serving(service)) == 1)

        async def refuse(method: str) -> Any:
            raise EngineDead("its link is gone")

        monkeypatch.setattr(cluster.made[0], "call", refuse)
        [row] = (await service.look())["engines"]
    assert (row["state"], row["waiting"], row["restarts"]) == ("serves", None, None)
