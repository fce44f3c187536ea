"""Which version of a service's model is asked anew, while one replaces another."""

import logging
from collections.abc import Collection, Sequence

from raydix.errors import EngineDead
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.model_limits import ModelLimits

logger = logging.getLogger(__name__)

_GONE_S = 10.0
"""The time for which what began with a version waits for an engine of it, while another serves."""


def next_version(num_engines: Sequence[int], chosen: int | None) -> int | None:
    """The version that new requests go to, by the place of each in the order of their starts.

    num_engines: how many engines of each version take requests. chosen: the version that they have
    gone to. A later version follows once it has as many engines; an earlier one does when no other
    has any. So each ingress changes once, whatever links are lost in between. None: there are no
    versions, or nobody takes requests and none was chosen.
    """
    there = [version for version, number in enumerate(num_engines) if number]
    if not there:
        return chosen
    if chosen not in there:
        return max(there, key=lambda version: (num_engines[version], version))
    followers = [each for each in there if num_engines[each] >= num_engines[chosen]]
    return max(followers)


class Versions:
    """Owns: a client for each version of the model, and which of them is asked anew.

    What began with one version goes on at engines of that version alone.
    """

    def __init__(self) -> None:
        self._clients: dict[ModelLimits, EngineClient] = {}
        self._version_of: dict[str, ModelLimits] = {}
        """The version of each engine that is there or has a link, by the engine's name."""
        self._chosen: EngineClient | None = None
        self._lost_s: dict[ModelLimits, float] = {}
        """Since when a version has had no engine while another one has."""

    def of(self, limits: ModelLimits) -> EngineClient | None:
        """The client of a version; None if no engine of it has been used."""
        return self._clients.get(limits)

    def add(self, client: EngineClient) -> None:
        """Know a version that there was not."""
        assert client.limits not in self._clients, "each version has one client"
        self._clients[client.limits] = client

    @property
    def engines(self) -> Collection[str]:
        """The engines whose version is known."""
        return self._version_of.keys()

    def note(self, engine: str, limits: ModelLimits) -> None:
        """Note that an engine serves this version."""
        self._version_of[engine] = limits

    def has_link(self, engine: str) -> bool:
        """Whether there is a link to this engine."""
        return any(client.has_link(engine) for client in self._clients.values())

    def chosen(self, engines: Sequence[str]) -> EngineClient | None:
        """The client of what is asked anew, by the engines that there are, the eldest first."""
        versions = [self._version_of[each] for each in engines if each in self._version_of]
        # A version without an engine is older than all that have some.
        left = [each for each in self._clients if each not in versions]
        clients = [
            self._clients[each]
            for each in dict.fromkeys([*left, *versions])
            if each in self._clients
        ]
        before = next((i for i, each in enumerate(clients) if each is self._chosen), None)
        place = next_version([each.num_taking for each in clients], before)
        after = None if place is None else clients[place]
        if self._chosen is not None and after is not None and after is not self._chosen:
            logger.info("another version of the model serves; what is asked anew goes there")
        self._chosen = after
        return after

    def give_up(self, error: EngineDead) -> None:
        """There will be no engine of any version: what waits fails."""
        for client in self._clients.values():
            client.give_up(error)

    async def forget(self, client: EngineClient) -> None:
        """Forget a version, of which nothing goes on."""
        del self._clients[client.limits]
        self._lost_s.pop(client.limits, None)
        if self._chosen is client:
            self._chosen = None
        await client.close()

    async def retire(self, engines: Sequence[str], now_s: float) -> None:
        """Let what waits for a version fail that has had no engine for long; forget the version.

        `engines`: those that there are. Of others only those with a link are remembered: the next
        one of that name says its version before it is used.
        """
        there = {*engines}
        self._version_of = {
            name: limits
            for name, limits in self._version_of.items()
            if name in there or self.has_link(name)
        }
        lost = [each for each in self._clients.values() if each.is_closed]
        if len(lost) == len(self._clients):
            lost = []
        self._lost_s = {each.limits: self._lost_s.get(each.limits, now_s) for each in lost}
        for client in lost:
            if now_s - self._lost_s[client.limits] < _GONE_S:
                continue
            text = (
                "The weights that this began with are served no more, as a later version has "
                "replaced them. Ask anew."
            )
            client.give_up(EngineDead(text))
            await self.forget(client)

    async def close(self) -> None:
        """Leave all engines."""
        clients, self._clients, self._chosen = list(self._clients.values()), {}, None
        for client in clients:
            await client.close()

    def abandon(self) -> None:
        """Leave all engines from outside of their loop, which runs no more."""
        for client in self._clients.values():
            client.abandon()
        self._clients, self._chosen = {}, None
