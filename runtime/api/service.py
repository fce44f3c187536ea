"""A handle on several engines of one model, of which any may end while requests go on."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from raydix.errors import BadRequest, EngineDead
from raydix.runtime.api.engine_connection import EngineConnection
from raydix.runtime.api.engine_place import EnginePlace
from raydix.runtime.api.explained import explained
from raydix.runtime.api.model_handle import ModelHandle
from raydix.runtime.api.request_options import check_switch
from raydix.runtime.api.service_name import ServiceMembers, ServiceName
from raydix.runtime.config.paths import require_absolute_l3
from raydix.runtime.config.policies import RoutingPolicyName


class AsyncService(ModelHandle):
    """A handle on several engines that serve one model, known by their names.

    A request goes where its first token is predicted to come soonest: by what each engine tells of
    what it caches, and of what it has to do. When an engine ends, its requests go on at another
    one, which gives the tokens that it would have given; it is used again once it is back. The
    first named engine that answers decides which model it is; an engine of another one is left out,
    which the log says. Control calls go to all others, and their answers come by the engines'
    names, None for one that is away or left out. It can be pickled, and belongs to an event loop,
    as `AsyncLLM`.
    """

    def __init__(
        self,
        engines: Sequence[str] | Mapping[str, str | None] | ServiceName,
        secret_file: str | Path | None = None,
        cluster: str | None = None,
        routing: RoutingPolicyName | str = RoutingPolicyName.KV,
    ) -> None:
        """A handle that connects when first used; the arguments are those of `connect`."""
        self._arguments = (engines, secret_file, cluster, routing)
        policy = _routing_of(routing)
        if isinstance(engines, ServiceName):
            self.name = engines.name
            members = ServiceMembers(engines.name, cluster)
            super().__init__(EngineConnection([], members, policy))
            return
        addresses = dict(engines if isinstance(engines, Mapping) else dict.fromkeys(engines))
        if isinstance(engines, str) or not addresses:
            raise BadRequest(
                f"engines is {engines!r}; expected the names of one engine or several, as a list, "
                "or as a dict that says at which HOST:PORT each listens."
            )
        places = [EnginePlace(each, at, secret_file, cluster) for each, at in addresses.items()]
        super().__init__(EngineConnection(places, routing=policy))
        self.name = "+".join(addresses)

    @classmethod
    async def find(cls, service: str, *, cluster: str | None = None) -> Self:
        """Reach a service of `raydix serve --nodes` by its name, on whatever nodes its engines are.

        This process must be part of its Ray cluster, or be able to join it at `cluster`. Engines
        that come are used, and those that go are forgotten. Raises EngineDead if there is none.
        """
        reached = cls(ServiceName(service), None, cluster)
        await reached.connected()
        return reached

    @classmethod
    async def connect(
        cls,
        engines: Sequence[str] | Mapping[str, str | None],
        *,
        secret_file: str | Path | None = None,
        cluster: str | None = None,
        routing: RoutingPolicyName | str = RoutingPolicyName.KV,
    ) -> Self:
        """Reach running engines. Raises EngineDead if none of them can be reached.

        engines: their names, or for each the `HOST:PORT` where it listens, None if it is on this
        host. secret_file, cluster: as of `AsyncLLM.connect`. routing: how the engine of a request
        is chosen: `kv`, where its first token is predicted to come soonest, `session` or
        `round_robin`.
        """
        reached = cls(engines, secret_file, cluster, routing)
        await reached.connected()
        return reached

    async def model_path(self) -> str:
        """Where the engines have their model from. Raises EngineDead if none is there."""
        handles = await self._connection.handles()
        there = [each for each in handles.values() if not isinstance(each, EngineDead)]
        if not there:
            raise EngineDead(f"None of the engines {self.name} is there. Start one.")
        return there[0].model_path

    async def stats(self) -> dict[str, Any]:
        """Counters and gauges of each engine."""
        return await self._call_all("stats")

    async def stats_by_engine(self) -> dict[str, dict[str, Any] | None]:
        """The same, under the name by which a server asks for them."""
        return await self.stats()

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop what every engine caches and no request uses; see `AsyncLLM.flush`."""
        return await self._call_all("flush", check_switch("l3", l3))

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Let every engine use another L3 backend; see `AsyncLLM.attach_storage`.

        A path must be absolute.
        """
        require_absolute_l3(section)
        return await self._call_all("attach_storage", dict(section))

    async def detach_storage(self) -> dict[str, Any]:
        """Let every engine go on without L3; see `AsyncLLM.detach_storage`."""
        return await self._call_all("detach_storage")

    async def sleep(self, weights: bool = False) -> dict[str, Any]:
        """Have every engine sleep; see `AsyncLLM.sleep`."""
        return await self._call_all("fall_asleep", check_switch("weights", weights))

    async def wake(self) -> dict[str, Any]:
        """Have every engine wake; see `AsyncLLM.wake`.

        Raises EngineAsleep if one of them has no room: the others are awake.
        """
        return await self._call_all("wake")

    async def phase_by_engine(self) -> dict[str, str | None]:
        """Whether each engine is awake, as `AsyncLLM.phase`; None, too, for one that is away."""
        return await self._call_all("phase")

    async def explain(self, request_id: str) -> dict[str, Any]:
        """Tell where a request's prompt came from, by the engine that knows of it.

        Raises UnknownRequest if none does.
        """
        return await explained(partial(self._first, "explain"), str(request_id))

    async def prefetch_state(self, prefetch_id: str) -> dict[str, Any] | None:
        """What the engine that has taken a prefetch knows of it; see `Prefetches.state`."""
        state: dict[str, Any] | None = await self._first("prefetch_state", str(prefetch_id))
        return state

    async def wait_ended(self) -> None:
        """Wait until every engine has ended. Raises EngineDead: why the last one did."""
        handles = await self._connection.handles()
        ends = [each.wait_ended() for each in handles.values() if not isinstance(each, EngineDead)]
        reasons = await asyncio.gather(*ends, return_exceptions=True)
        raise EngineDead("; ".join(str(reason) for reason in reasons))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), self._arguments

    async def _call_all(self, method: str, *arguments: Any) -> dict[str, Any]:
        return await self._connection.call_all(method, *arguments)

    async def _first(self, method: str, *arguments: Any) -> Any:
        """The first answer that is one."""
        answers = await self._call_all(method, *arguments)
        return next((each for each in answers.values() if each is not None), None)


def _routing_of(name: RoutingPolicyName | str) -> RoutingPolicyName:
    """Raises BadRequest for a name of no policy."""
    try:
        return RoutingPolicyName(name)
    except ValueError:
        names = ", ".join(RoutingPolicyName)
        raise BadRequest(f"routing is {name!r}; expected one of {names}.") from None
