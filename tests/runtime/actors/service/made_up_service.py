"""A service whose nodes and engines are made up, for tests of its owner."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from raydix.errors import EngineDead, EngineStopped
from raydix.runtime.actors.bootstrap.control_client import EngineAway
from raydix.runtime.actors.bootstrap.placement import NoRoom
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.service.desk import answering, find_former
from raydix.runtime.actors.service.former import FormerService
from raydix.runtime.actors.service.owner import EngineService
from raydix.runtime.actors.service.roles import ServiceRoles
from raydix.runtime.actors.service.scale import Scaler, ScaleRule
from raydix.runtime.config.policies import EngineRole

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
        self.is_draining = False
        self.drains_until: asyncio.Future[None] | None = None
        """What its drain waits for; None: for nothing."""
        self.num_releases = 0
        self._loop = loop
        self._end: asyncio.Future[EngineDead] = loop.create_future()
        self._cut: asyncio.Future[None] = loop.create_future()

    @property
    def is_over(self) -> bool:
        return self._end.done()

    async def call(self, method: str, *arguments: Any) -> Any:
        self._require_link()
        if method == "client_facts":
            if self._end.done():
                raise self._end.result()
            return {"fingerprint": self.fingerprint}
        if method == "shutdown":
            return await self._shut_down()
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
        self._require_link()
        await asyncio.wait({self._end, self._cut}, return_when=asyncio.FIRST_COMPLETED)
        self._require_link()
        raise self._end.result()

    async def _shut_down(self) -> None:
        """Drain, and end, also if whoever has asked is not there any more to hear of it."""
        self.is_draining = True
        if self.drains_until is not None:
            await asyncio.wait({self._cut, self.drains_until}, return_when=asyncio.FIRST_COMPLETED)
            self._require_link()
        self.finish(EngineStopped(f"engine {self.name} was shut down"))

    def release(self) -> None:
        self.num_releases += 1
        self._loop.call_soon_threadsafe(self.finish, EngineDead(f"engine {self.name} was killed"))

    def cut(self) -> None:
        """Break the links to it, and let nobody make another until `mend`."""
        self._cut.set_result(None)

    def mend(self) -> None:
        self._cut = self._loop.create_future()

    def _require_link(self) -> None:
        if self._cut.done():
            raise EngineAway(f"the link to the Supervisor of engine {self.name} is lost")

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
        self.drain_s = 0.1
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

    def start(self, name: str, node: str, role: EngineRole, control: StartControl) -> FakeEngine:
        self.fail(node)
        if sum(each.node == node for each in self.there) >= self.max_per_node:
            raise NoRoom(f"node {node} is full")
        engine = FakeEngine(name, node, self.fingerprint, self._loop)
        self.made.append(engine)
        return engine


@contextlib.asynccontextmanager
async def running(
    cluster: FakeCluster,
    num_usual: int,
    former: FormerService | None = None,
    most: int | None = None,
    num_prefill: int = 0,
) -> AsyncIterator[tuple[EngineService, "asyncio.Task[None]"]]:
    rule = ScaleRule(fewest=num_usual, most=most or num_usual, crowded_s=0.0, idle_s=0.0)
    roles = ServiceRoles(usual=EngineRole.BOTH, num_prefill=num_prefill)
    service = EngineService(NAME, cluster, Scaler(rule, num_slots=4), roles, former)
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


def states(service: EngineService) -> dict[str, str]:
    return {each["name"]: each["state"] for each in service.describe()["engines"]}


def roles_on(service: EngineService) -> dict[str, str]:
    engines = service.describe()["engines"]
    return {each["node"]: each["role"] for each in engines if each["state"] == "serves"}
