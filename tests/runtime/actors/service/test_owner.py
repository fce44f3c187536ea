"""A service whose nodes and engines are made up."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from raydix.errors import BadRequest, ConfigError, EngineDead, EngineStopped
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.bootstrap.placement import NoRoom
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.engine_record import find_record
from raydix.runtime.actors.service import owner
from raydix.runtime.actors.service.desk import answering, find_former
from raydix.runtime.actors.service.former import FormerService
from raydix.runtime.actors.service.owner import EngineService
from raydix.runtime.actors.service.scale import Scaler, ScaleRule
from raydix.version import VERSION

NAME = f"made-up-{os.getpid()}"
WAIT_S = 60.0


class FakeEngine:
    """Serves until it is killed or shut down."""

    def __init__(
        self, name: str, node: str, fingerprint: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self.node = node
        self.fingerprint = fingerprint
        self.load = (0, 0)
        """Requests that wait, and that run."""
        self._loop = loop
        self._end: asyncio.Future[EngineDead] = loop.create_future()

    @property
    def is_over(self) -> bool:
        return self._end.done()

    async def call(self, method: str, *arguments: Any) -> Any:
        if method == "client_facts":
            return {"fingerprint": self.fingerprint}
        assert method == "stats"
        waiting, running = self.load
        figures = {
            "num_requests_waiting": waiting,
            "num_requests_running": running,
            "num_requests_loading": 0,
            "queue_times": {"counts": [0, 0], "sum": 0.0},
        }
        return {"scheduler": figures}

    async def wait_ended(self) -> None:
        raise await self._end

    async def shutdown(self) -> None:
        self.finish(EngineStopped(f"engine {self.name} was shut down"))

    def kill(self) -> None:
        self.finish(EngineDead(f"engine {self.name} is gone"))

    def finish(self, error: EngineDead) -> None:
        if not self._end.done():
            self._end.set_result(error)


class FakeCluster:
    """Nodes, engines on them, and what becomes of starts."""

    def __init__(self, nodes: str) -> None:
        self.live_nodes = nodes
        self.made: list[FakeEngine] = []
        self.max_per_node = 2
        self.fingerprint = "f1"
        self.fail: Callable[[str], None] = lambda node: None
        self._loop = asyncio.get_running_loop()

    @property
    def there(self) -> list[FakeEngine]:
        return [each for each in self.made if not each.is_over]

    def nodes(self) -> list[str]:
        return list(self.live_nodes)

    def addresses(self) -> dict[str, str]:
        return {node: f"10.0.0.{ord(node)}" for node in self.live_nodes}

    def engines(self) -> list[str]:
        return [each.name for each in self.there]

    def start(self, name: str, node: str, control: StartControl) -> FakeEngine:
        self.fail(node)
        if sum(each.node == node for each in self.there) >= self.max_per_node:
            raise NoRoom(f"node {node} is full")
        engine = FakeEngine(name, node, self.fingerprint, self._loop)
        self.made.append(engine)
        return engine


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_LOOK_S", 0.01)
    monkeypatch.setattr(owner, "_FOUND_S", 0.0)


@contextlib.asynccontextmanager
async def running(
    cluster: FakeCluster,
    num_wanted: int,
    former: FormerService | None = None,
    most: int | None = None,
) -> AsyncIterator[tuple[EngineService, "asyncio.Task[None]"]]:
    rule = ScaleRule(fewest=num_wanted, most=most or num_wanted, crowded_s=0.0, idle_s=0.0)
    service = EngineService(NAME, cluster, Scaler(rule, num_slots=4), former)
    async with answering(service):
        task = asyncio.create_task(service.run())
        try:
            yield service, task
        finally:
            service.stop()
            await asyncio.gather(task, return_exceptions=True)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_true():
            await asyncio.sleep(0.005)


async def former_of() -> FormerService:
    async with asyncio.timeout(WAIT_S):
        while (former := await find_former(NAME)) is None:
            await asyncio.sleep(0.005)
    return former


def serving(service: EngineService) -> dict[str, str]:
    engines = service.describe()["engines"]
    return {each["node"]: each["name"] for each in engines if each["state"] == "serves"}


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
        await (await former_of()).keep(1)
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
