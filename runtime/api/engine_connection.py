"""A handle's way to its engines: found by name, connected to, and again after a loss."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.engine_line import ChooseLine
from raydix.runtime.api.engine_place import Dialler, EnginePlace
from raydix.runtime.api.first_outcomes import first_outcomes, raise_unless_some_are_there
from raydix.runtime.api.found_engine import FoundEngine
from raydix.runtime.api.home_loop import HomeLoop
from raydix.runtime.api.known_tokenizers import KnownTokenizers
from raydix.runtime.api.line_choice import SessionLines
from raydix.runtime.api.line_router import LineRouter
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.api.served_model import OtherModel, ServedModel
from raydix.runtime.api.service_name import ServiceMembers
from raydix.runtime.api.versions import Versions
from raydix.runtime.config.policies import RoutingPolicyName
from raydix.runtime.routing.policies import policy_of

_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 5.0
_LOOK_S = 1.0
"""The time after which the engines of a service are looked for again."""
_NOBODY_S = 60.0
"""The time for which requests wait while a service has no engine."""
_ANSWER_S = 10.0
"""How long an engine that is there may take to say so."""
_GRACE_S = 1.0
"""How much longer than the first engine that answers others may take, to have a say in the model
and a link to begin with.
"""
logger = logging.getLogger(__name__)


class EngineConnection:
    """Owns: the clients of the engines at some places, which serve one model.

    Those of a service may serve several versions of it. Of several others the first named one that
    answers decides which model that is; those of others are left out, and hear nothing. A lost link
    is made anew as soon as requests wait for it; to one of several engines, in any case. Requests
    wait until that works or no engine is left.
    """

    def __init__(
        self,
        places: Sequence[EnginePlace],
        members: ServiceMembers | None = None,
        routing: RoutingPolicyName = RoutingPolicyName.KV,
    ) -> None:
        """`members`: finds the places of a service, whose engines come and go."""
        self._routing = routing
        self.routing_figures = RoutingFigures(place.name for place in places)
        """What has become of requests that were routed; nothing is where there is one engine."""
        self.engines = [FoundEngine(place) for place in places]
        is_near = members is None and all(each.address is None for each in places)
        self.tokenizers = KnownTokenizers(is_near=is_near)
        self._members = members
        self._watch: asyncio.Task[None] | None = None
        self._client: EngineClient | None = None
        """The client of the version that new requests go to."""
        self._versions = Versions()
        self._model = ServedModel()
        """The model of several engines; one alone may serve another after each start."""
        self._home, self._dialler = HomeLoop(), Dialler()
        self._recoveries: dict[str, asyncio.Task[None]] = {}

    async def client(self) -> EngineClient:
        """The client of whatever engines have the names now, with a link to one at least.

        Raises EngineDead.
        """
        client = self.client_at_hand()
        if client is not None and not client.is_closed:
            return client
        async with self._home.connecting.turn():
            if self._client is None or self._client.is_closed:
                await self._connect_to_all()
        assert self._client is not None, "one engine at least was reached"
        return self._client

    async def client_of_requests(self) -> EngineClient:
        """The same; without a link also the client whose open requests wait for one, if they do.

        What is submitted to it waits as they do. Raises EngineDead if no engine is left.
        """
        try:
            return await self.client()
        except EngineDead:
            client = self.client_at_hand()
            if client is None or self._are_over:
                raise
            return client

    async def handles(self) -> dict[str, EngineHandle | EngineDead]:
        """The handle of each engine by its name, or why it is of no use: it is away, or left out.

        Raises EngineDead if all are away, and what any of them raises else.
        """
        if not self.engines:
            await self._meet_members()
        engines = self.engines
        found = await asyncio.gather(*map(self._look_up, engines), return_exceptions=True)
        return self._judged(engines, found)

    async def call_all(self, method: str, *arguments: Any) -> dict[str, Any]:
        """What each engine answers to a control call, by its name; None for one that is away.

        One that is left out is not asked, and counts as away. Raises EngineDead if all are away,
        and what any of them raises else.
        """
        handles = await self.handles()
        # Those of a service may come and go meanwhile.
        engines = [each for each in self.engines if each.name in handles]
        answers = await asyncio.gather(
            *(self._call(each, handles[each.name], method, *arguments) for each in engines),
            return_exceptions=True,
        )
        raise_unless_some_are_there(_names(engines), answers)
        return {
            engine.name: None if isinstance(answer, BaseException) else answer
            for engine, answer in zip(engines, answers, strict=True)
        }

    async def _call(
        self, engine: FoundEngine, found: EngineHandle | EngineDead, method: str, *arguments: Any
    ) -> Any:
        if isinstance(found, EngineDead):
            raise found
        try:
            return await found.call(method, *arguments)
        except EngineDead:
            engine.forget()
            raise

    def client_at_hand(self) -> EngineClient | None:
        """The client that there is on this event loop, perhaps without a link."""
        entered = self._home.enter(self._client)
        if entered is None:
            # They are of a former loop, if there are any.
            self._versions.abandon()
        self._client = self._versions.chosen(_names(self.engines))
        return self._client

    async def disconnect(self) -> None:
        """Leave the engines. Open streams raise Cancelled and their requests are aborted."""
        self.client_at_hand()
        self._client = None
        if self._watch is not None:
            self._watch.cancel()
        for each in self._recoveries.values():
            each.cancel()
        await self._versions.close()

    async def shutdown(self) -> None:
        """Stop the engines, whoever started them; the first one last, with which Ray may end."""
        await self.disconnect()
        for engine in reversed(self.engines):
            await engine.shutdown()

    async def _connect_to_all(self) -> None:
        """Connect to the engines that can be reached. Raises EngineDead if none can."""
        await self._meet_members()
        engines = self.engines
        found = await first_outcomes([self._find(each) for each in engines], _GRACE_S)
        if self._is_alone:
            # Of several, those who look for them again say so.
            [engine], [each] = engines, found
            engine.note(each if isinstance(each, EngineDead) else None)
        judged = self._judged(engines, found)
        outcomes = await first_outcomes(
            [self._join(engine, judged[engine.name]) for engine in engines], _GRACE_S
        )
        raise_unless_some_are_there(_names(engines), outcomes)
        for engine, outcome in zip(engines, outcomes, strict=True):
            if outcome is not None:
                self._tell(engine, f"is not used: {outcome}")
                self._recover(engine)
        if self._members is not None and (self._watch is None or self._watch.done()):
            self._watch = asyncio.create_task(self._watch_members(self._members), name="members")

    async def _meet_members(self) -> None:
        """Know the engines that a service has now. Raises EngineDead if it has none."""
        if self._members is None:
            return
        self._meet(await self._members.find())
        if not self.engines:
            raise self._members.nobody("at the moment", "Try again later, or correct its name")

    def _meet(self, places: Sequence[EnginePlace]) -> list[FoundEngine]:
        """Know the engines at these places from now on, and no others. Returns the new ones."""
        known = {engine.place: engine for engine in self.engines}
        new = [FoundEngine(place) for place in places if place not in known]
        self.engines = [known[place] for place in places if place in known] + new
        names = {engine.name for engine in self.engines}
        for name in [each for each in self._recoveries if each not in names]:
            self._recoveries.pop(name).cancel()
        return new

    async def _watch_members(self, members: ServiceMembers) -> None:
        """Connect to the engines that come; give up once there has been none for a while."""
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            client, now_s = self._client, time.monotonic()
            if client is None:
                return
            try:
                for engine in self._meet(await members.find()):
                    self._recover(engine)
            except RaydixError as error:
                logger.warning("%s", error)
            names = _names(self.engines)
            self.routing_figures.note_there(names, now_s)
            await self._versions.retire(names, now_s)
            client = self._client = self._versions.chosen(names) or client
            if self.engines or not client.is_closed:
                last_s = now_s
            elif now_s - last_s > _NOBODY_S:
                self._versions.give_up(members.nobody(f"since {_NOBODY_S:g} s", "Ask anew"))
                last_s = now_s

    async def _find(self, engine: FoundEngine) -> EngineHandle:
        """The engine that has the name by now. Raises EngineDead."""
        return await (engine.handle() if self._client is None else engine.found_again())

    async def _look_up(self, engine: FoundEngine) -> EngineHandle:
        """The same; where there is a link, it is the engine at its other end."""
        has_link = self._versions.has_link(engine.name)
        return await (engine.handle() if has_link else self._find(engine))

    def _judged(
        self, engines: Sequence[FoundEngine], found: Sequence[EngineHandle | BaseException]
    ) -> dict[str, EngineHandle | EngineDead]:
        """What was found of each engine, by its name, those of other models as errors.

        Raises as `handles` does.
        """
        raise_unless_some_are_there(_names(engines), found)
        judged: dict[str, EngineHandle | EngineDead] = {}
        for engine, each in zip(engines, found, strict=True):
            assert not isinstance(each, BaseException) or isinstance(each, EngineDead), "as raised"
            judged[engine.name] = each
        if self._is_alone or self._members is not None:
            return judged

        there = {name: each for name, each in judged.items() if not isinstance(each, EngineDead)}
        self._model.decide(there)
        for name, handle in there.items():
            try:
                self._model.require(name, handle)
            except OtherModel as error:
                judged[name] = error
        return judged

    async def _connect(self, engine: FoundEngine) -> None:
        """Find one engine, and use it. Raises why that cannot be, EngineDead as a rule."""
        handle = await self._find(engine)
        if not self._is_alone and self._members is None:
            self._model.require(engine.name, handle)
        await self._join(engine, handle)

    async def _join(self, engine: FoundEngine, found: EngineHandle | EngineDead) -> None:
        """Use an engine that was found. Raises why that cannot be, EngineDead as a rule."""
        if isinstance(found, EngineDead):
            raise found
        async with self._home.joining(engine):
            if not self._versions.has_link(engine.name):
                await self._link_to(engine, found)
        self._client = self._versions.chosen(_names(self.engines))

    async def _link_to(self, engine: FoundEngine, found: EngineHandle) -> None:
        """Make a link to an engine to which there is none."""
        try:
            tokenizer = await self.tokenizers.of(found)
            link = await self._dialler.open_link(engine.name, found)
        except EngineDead:
            engine.forget()
            raise

        limits, former = ModelLimits.of(found.facts), self._client
        if self._members is None and former is not None and former.limits != limits:
            former.give_up(
                EngineDead(f"The engine {engine.name!r} serves another model by now. Ask anew.")
            )
            await self._versions.forget(former)
        client = self._versions.of(limits)
        if client is None:
            client = EngineClient(limits, tokenizer, self._note_loss, self._choice())
            self._versions.add(client)
        self._versions.note(engine.name, limits)
        engine.note(None)
        client.use(engine.name, link)
        self._tell(engine, "is used", logging.INFO)

    def _choice(self) -> ChooseLine:
        """What chooses the engine of each request. One that is the only one is not followed."""
        if self._is_alone:
            return SessionLines()
        return LineRouter(policy_of(self._routing), self.routing_figures)

    def _tell(self, engine: FoundEngine, news: str, level: int = logging.WARNING) -> None:
        """Log what has become of one of several engines, unless that was told last."""
        if not self._is_alone and engine.is_news(news):
            logger.log(level, "engine %s %s", engine.name, news)

    def _note_loss(self, name: str) -> None:
        for engine in self.engines:
            if engine.name == name:
                self._tell(
                    engine, "is not reached any more; what it has left open goes on at any other"
                )
                self._recover(engine)

    @property
    def _is_alone(self) -> bool:
        """Whether there is one engine, and will not be others."""
        return len(self.engines) == 1 and self._members is None

    @property
    def _are_over(self) -> bool:
        """Whether all engines have ended for good; those of a service may have followers."""
        return self._members is None and all(each.failure is not None for each in self.engines)

    def _recover(self, engine: FoundEngine) -> None:
        former = self._recoveries.get(engine.name)
        if former is None or former.done():
            self._recoveries[engine.name] = asyncio.create_task(
                self._connect_again(engine), name=f"raydix-recovery-{engine.name}"
            )

    async def _connect_again(self, engine: FoundEngine) -> None:
        client, pause_s = self._client, _FIRST_RETRY_S
        assert client is not None, "its link was lost"
        while not self._versions.has_link(engine.name):
            # Where there is but one engine, the next request looks for it.
            if self._is_alone and not client.has_waiting:
                return
            engine.note(await self._try_again(engine))
            if engine.failure is not None and self._are_over:
                client.give_up(engine.failure)
            # Also after a success: a link that is lost again at once is not made anew at once.
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_RETRY_S)

    async def _try_again(self, engine: FoundEngine) -> RaydixError | None:
        """Connect to an engine again; why it is of no use any more, None if it is or may be."""
        try:
            # An engine that has ended says so here; one whose Scheduler is made anew does not.
            async with asyncio.timeout(_ANSWER_S):
                await engine.call("client_facts")
        except TimeoutError:
            text = f"engine {engine.name} has answered nothing for {_ANSWER_S:g} s"
            self._tell(engine, f"is not used: {text}")
            # Among several it may answer later, while others serve.
            is_over = EngineDead(f"{text}: it hangs, or its host is gone.")
            return is_over if self._is_alone else None
        except RaydixError as error:
            return error
        try:
            await self._connect(engine)
        except RaydixError as error:
            self._tell(engine, f"is not used: {error}")
            is_lasting = isinstance(error, OtherModel) or not isinstance(error, EngineDead)
            return error if is_lasting else None
        return None


def _names(engines: Sequence[FoundEngine]) -> list[str]:
    return [engine.name for engine in engines]
