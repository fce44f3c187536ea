"""Chooses among several engines by what each of them tells of its keys and its load."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

from raydix.errors import EngineDead
from raydix.ids import AskingId, NodeId, RequestId
from raydix.runtime.api.engine_line import EngineLine
from raydix.runtime.api.line_choice import by_session
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.messages.client import PrefetchPrompt, SubmitRequest
from raydix.runtime.messages.routing import EngineNews, FollowEngine
from raydix.runtime.routing.events import Route
from raydix.runtime.routing.policies import RoutingPolicy
from raydix.runtime.routing.router import Router, Said


class LineRouter:
    """Owns: which number each link to an engine has at the router, which decides."""

    def __init__(
        self,
        policy: RoutingPolicy,
        figures: RoutingFigures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = Router(policy)
        self._figures = figures
        self._clock = clock
        self._numbers = itertools.count(1)
        self._nodes: dict[str, NodeId] = {}
        """The number of the link to each engine, by the engine's name."""
        self._lines: dict[NodeId, EngineLine] = {}

    def opened(self, line: EngineLine) -> None:
        """Follow an engine from now on."""
        number = self._nodes[line.engine] = NodeId(next(self._numbers))
        self._lines[number] = line
        self._router.find(number, line.engine, self._clock())
        _ask(line)

    def lost(self, line: EngineLine) -> None:
        """Forget what was known of an engine."""
        number = self._nodes.pop(line.engine, None)
        if number is not None:
            del self._lines[number]
            self._router.lose(number, self._clock())
        self._figures.forget(line.engine)

    def hear(self, line: EngineLine, news: EngineNews) -> None:
        """Take in what an engine tells, and ask for what comes next."""
        node = self._nodes[line.engine]
        self._router.hear(node, news, self._clock())
        self._figures.note_keys(line.engine, self._router.num_keys(node))
        _ask(line)

    def choose(
        self, lines: Sequence[EngineLine], message: SubmitRequest | PrefetchPrompt
    ) -> tuple[EngineLine, SubmitRequest | PrefetchPrompt]:
        """The engine where the answer comes soonest; while none has told its load, by session.

        So are prefetches, which nobody waits for.
        """
        if isinstance(message, PrefetchPrompt):
            return by_session(lines, message), message
        by_node = {self._nodes[line.engine]: line for line in lines}
        sending = self._router.send(message, by_node.keys(), self._clock())
        self._say(sending.said)
        if sending.node is None:
            line = by_session(lines, message)
            return line, self.joins(line, message)
        if sending.route is not None:
            self._figures.count(sending.route)
        return by_node[sending.node], sending.message

    def joins(
        self, line: EngineLine, message: SubmitRequest | PrefetchPrompt
    ) -> SubmitRequest | PrefetchPrompt:
        """Count what goes to an engine that was not chosen here, such as a further sample."""
        if isinstance(message, PrefetchPrompt):
            return message
        self._say(self._router.forget(message.request_id))
        return self._router.joins(self._nodes[line.engine], message)

    def answered(self, asking: AskingId, request_id: RequestId, *, is_last: bool) -> None:
        """The first tokens of an asking have come, or there will be none."""
        shown = self._router.answered(asking, request_id, self._clock(), is_last=is_last)
        if shown.late_s is not None:
            self._figures.observe(shown.late_s)
        if shown.hand_over_s is not None:
            self._figures.observe_hand_over(shown.hand_over_s)

    def ended(self, asking: AskingId, request_id: RequestId) -> None:
        """An asking has ended, and nothing goes on elsewhere: who expects the rest is told."""
        self._say(self._router.ended(asking, request_id))

    def route_of(self, asking: AskingId) -> Route | None:
        """Why an asking has gone where it has, until its first token has come."""
        return self._router.route_of(asking)

    def predict_s(self, lines: Sequence[EngineLine], message: SubmitRequest) -> float:
        """The least time to the next token that is predicted of these engines."""
        nodes = [self._nodes[line.engine] for line in lines]
        return self._router.predict_s(message, nodes, self._clock())

    def _say(self, said: Iterable[Said]) -> None:
        """Tell engines something; of a link that is lost its reader tells."""
        for each in said:
            if (line := self._lines.get(each.node)) is not None:
                with contextlib.suppress(EngineDead):
                    line.send(each.message)


def _ask(line: EngineLine) -> None:
    """Ask for news; of a link that is lost its reader tells."""
    with contextlib.suppress(EngineDead):
        line.send(FollowEngine())
