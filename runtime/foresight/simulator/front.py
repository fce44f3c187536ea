"""The ingress of a simulated service: links to its engines, and which of them gets a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from raydix.ids import AskingId, ClientId, NodeId, RequestId
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key
from raydix.runtime.foresight.simulator.engine import ToClient
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.foresight.simulator.node import SimulatedNode
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.messages.client import RequestDelta, SubmitRequest
from raydix.runtime.messages.kv_events import KvNews
from raydix.runtime.messages.routing import EngineNews, FollowEngine
from raydix.runtime.routing.events import (
    Asking,
    FollowingBegun,
    NodeFound,
    NodeGone,
    NodeNews,
    NodeReported,
)
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.policies import RoutingPolicy
from raydix.runtime.scheduler.events import SendTokens


@dataclass(slots=True, eq=False)
class _Line:
    """A link to an engine."""

    node: SimulatedNode
    link: Link
    number: NodeId
    askings: set[AskingId] = field(default_factory=set)
    """What was sent over it and has not ended."""


class ServiceFront:
    """Owns: the ingress, and a link to each engine that can be reached.

    A link is a node of its own to the ingress, as in production.
    """

    def __init__(
        self,
        world: World,
        nodes: Sequence[SimulatedNode],
        policy: RoutingPolicy,
        *,
        hear: Callable[[RequestDelta | SendTokens], None],
        lose: Callable[[AskingId], None],
    ) -> None:
        """`hear` is told what engines say of askings, `lose` which ones nobody answers."""
        self._world, self._hear, self._lose = world, hear, lose
        self._ingress = Ingress(policy)
        self._follows = len(nodes) > 1
        self._lines: dict[NodeId, _Line] = {}
        self._by_asking: dict[AskingId, _Line] = {}
        self._num_links = 0
        for node in nodes:
            self._dial(node)

    def _dial(self, node: SimulatedNode) -> None:
        node.scheduler.connect(partial(self._use, node), lambda: True)

    def _use(self, node: SimulatedNode, link: Link) -> None:
        self._num_links += 1
        number = NodeId(self._num_links)
        line = self._lines[number] = _Line(node, link, number)
        link.listen(End.DIALLER, partial(self._take, line), partial(self._close, line))
        client = ClientId(f"client {number}")
        link.carry(End.ACCEPTOR, partial(node.scheduler.accept_client, link, client))
        if self._follows:
            found = NodeFound(node=number, name=node.name)
            self._ingress.handle(found, self._world.now_s)
            link.send(End.ACCEPTOR, FollowEngine())

    def _close(self, line: _Line) -> None:
        del self._lines[line.number]
        self._ingress.handle(NodeGone(node=line.number), self._world.now_s)
        # In order: sets have none that is the same in every run.
        for asking in sorted(line.askings):
            del self._by_asking[asking]
            self._lose(asking)
        self._dial(line.node)

    def send(self, message: SubmitRequest) -> SimulatedNode | None:
        """Send a request where the ingress says; None: nobody can be reached now."""
        line = self._choose(message)
        if line is None:
            return None
        line.askings.add(message.asking)
        self._by_asking[message.asking] = line
        line.link.send(End.ACCEPTOR, message)
        return line.node

    def _choose(self, message: SubmitRequest) -> _Line | None:
        if not self._lines:
            return None
        if not self._follows:
            return next(iter(self._lines.values()))
        packed, root = pack_tokens(message.token_ids), root_key()
        asking = Asking(
            request_id=_name(message.asking),
            keys={size: extend_keys(root, packed, size) for size in self._ingress.page_sizes},
            num_tokens=len(message.token_ids),
            session_id=message.session_id,
        )
        route = self._ingress.route(asking, self._world.now_s, self._lines.keys())
        return None if route is None else self._lines[route.node]

    def note_first_token(self, asking: AskingId) -> None:
        """The first token of a request has come."""
        if self._follows:
            self._ingress.note_first_token(_name(asking), self._world.now_s)

    def note_end(self, asking: AskingId) -> None:
        """A request has ended."""
        self._by_asking.pop(asking).askings.discard(asking)
        if self._follows:
            self._ingress.release(_name(asking))

    def _take(self, line: _Line, said: ToClient) -> None:
        if not isinstance(said, EngineNews):
            self._hear(said)
            return
        now_s, node = self._world.now_s, line.number
        if said.is_anew:
            self._ingress.handle(FollowingBegun(node=node), now_s)
        keys = KvNews(events=said.events, is_whole=said.is_whole)
        self._ingress.handle(NodeNews(node=node, news=keys), now_s)
        if said.report is not None:
            self._ingress.handle(NodeReported(node=node, report=said.report), now_s)
        line.link.send(End.ACCEPTOR, FollowEngine())


def _name(asking: AskingId) -> RequestId:
    return RequestId(str(asking))
