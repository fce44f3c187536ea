"""The client's side of a simulated service: links to its engines, and the router that chooses."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from raydix.ids import AskingId, ClientId, NodeId, RequestId
from raydix.runtime.foresight.simulator.engine import ToClient
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.foresight.simulator.whole_engine import SimulatedEngine
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.messages.client import RequestDelta, SubmitRequest
from raydix.runtime.messages.routing import FollowEngine
from raydix.runtime.routing.policies import RoutingPolicy
from raydix.runtime.routing.router import Router, Said
from raydix.runtime.scheduler.events import SendTokens


@dataclass(slots=True, eq=False)
class _Line:
    """A link to an engine."""

    engine: SimulatedEngine
    link: Link
    number: NodeId
    askings: set[AskingId] = field(default_factory=set)
    """What was sent over it and has not ended."""


class ServiceFront:
    """Owns: production's router, and a link to each engine that can be reached.

    A link is a node of its own to the router, as in production.
    """

    def __init__(
        self,
        world: World,
        engines: Sequence[SimulatedEngine],
        policy: RoutingPolicy,
        *,
        hear: Callable[[RequestDelta | SendTokens], None],
        lose: Callable[[AskingId], None],
        may_ask: Callable[[], None],
    ) -> None:
        """`hear` is told what engines say of askings, `lose` which ones nobody answers, and
        `may_ask` is called when there may be an engine for what none could be asked.
        """
        self._world, self._hear, self._lose = world, hear, lose
        self._may_ask = may_ask
        self._router = Router(policy)
        self._follows = len(engines) > 1
        self._lines: dict[NodeId, _Line] = {}
        self._by_asking: dict[AskingId, _Line] = {}
        self._num_links = 0
        self.hand_overs_s: list[float] = []
        """How long each hand-over has taken, from the first token to the second one."""
        for engine in engines:
            self._dial(engine)

    def _dial(self, engine: SimulatedEngine) -> None:
        engine.scheduler.connect(partial(self._use, engine), lambda: True)

    def _use(self, engine: SimulatedEngine, link: Link) -> None:
        self._num_links += 1
        number = NodeId(self._num_links)
        line = self._lines[number] = _Line(engine, link, number)
        link.listen(End.DIALLER, partial(self._take, line), partial(self._close, line))
        client = ClientId(f"client {number}")
        link.carry(End.ACCEPTOR, partial(engine.scheduler.accept_client, link, client))
        if self._follows:
            self._router.find(number, engine.name, self._world.now_s)
            link.send(End.ACCEPTOR, FollowEngine())
        else:
            self._may_ask()

    def _close(self, line: _Line) -> None:
        del self._lines[line.number]
        self._router.lose(line.number, self._world.now_s)
        # In order: sets have none that is the same in every run.
        for asking in sorted(line.askings):
            del self._by_asking[asking]
            self._lose(asking)
        self._dial(line.engine)

    def send(self, message: SubmitRequest) -> SimulatedEngine | None:
        """Send a request where the router says; None: nobody can be asked now."""
        if not self._lines:
            return None
        if self._follows:
            sending = self._router.send(message, self._lines.keys(), self._world.now_s)
            self._say(sending.said)
            if sending.node is None:
                return None
            line, message = self._lines[sending.node], sending.message
        else:
            [line] = self._lines.values()
        line.askings.add(message.asking)
        self._by_asking[message.asking] = line
        line.link.send(End.ACCEPTOR, message)
        return line.engine

    def _say(self, said: Iterable[Said]) -> None:
        for each in said:
            if (line := self._lines.get(each.node)) is not None:
                line.link.send(End.ACCEPTOR, each.message)

    def note_tokens(self, asking: AskingId, request_id: RequestId) -> None:
        """Tokens of an asking have come."""
        if not self._follows:
            return
        now_s = self._world.now_s
        shown = self._router.answered(asking, request_id, now_s, is_last=False)
        if shown.hand_over_s is not None:
            self.hand_overs_s.append(shown.hand_over_s)

    def note_left(self, asking: AskingId, request_id: RequestId) -> None:
        """An asking has ended, and its request goes on by another one."""
        self._by_asking.pop(asking).askings.discard(asking)
        if self._follows:
            self._router.answered(asking, request_id, self._world.now_s, is_last=True)

    def note_end(self, asking: AskingId, request_id: RequestId) -> None:
        """An asking has ended, and its request with it."""
        self.note_left(asking, request_id)
        if self._follows:
            self._say(self._router.ended(asking, request_id))

    def _take(self, line: _Line, said: ToClient) -> None:
        if isinstance(said, RequestDelta | SendTokens):
            self._hear(said)
            return
        self._router.hear(line.number, said, self._world.now_s)
        line.link.send(End.ACCEPTOR, FollowEngine())
        if said.report is not None:
            self._may_ask()
