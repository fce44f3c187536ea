"""Chooses among several engines by what each of them tells of its keys and its load."""

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from raydix.errors import EngineDead
from raydix.ids import AskingId, NodeId, RequestId
from raydix.runtime.api.engine_line import EngineLine
from raydix.runtime.api.line_choice import by_session
from raydix.runtime.api.prompt_keys import PromptKeys
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.messages.client import (
    AbortRequest,
    ExpectRequest,
    PrefetchPrompt,
    SubmitRequest,
)
from raydix.runtime.messages.kv_events import KvNews
from raydix.runtime.messages.routing import EngineNews, FollowEngine
from raydix.runtime.routing.events import (
    Asking,
    FollowingBegun,
    NodeFound,
    NodeGone,
    NodeNews,
    NodeReported,
    Route,
)
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.last_places import LastPlaces
from raydix.runtime.routing.policies import RoutingPolicy

_EXPECTED_S, _EXPECTED_TIMES = 10.0, 4.0
"""An engine expects what is to go on there for so long, and so many times its first token's time.
"""


@dataclass(frozen=True, slots=True)
class _Begun:
    """What one engine was asked for the first token of."""

    asked_as: RequestId
    """What the ingress calls that asking."""
    then: NodeId
    """Where the request goes on."""
    expected_as: AskingId | None = None
    """The asking by which it was foretold there; None: it was not."""


class LineRouter:
    """Owns: the ingress that follows the engines, and which number each link has there.

    A link is a node of its own: what was known of an engine ends with its link.
    """

    def __init__(
        self,
        policy: RoutingPolicy,
        figures: RoutingFigures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ingress = Ingress(policy)
        self._figures = figures
        self._clock = clock
        self._numbers = itertools.count(1)
        self._nodes: dict[str, NodeId] = {}
        """The number of the link to each engine, by the engine's name."""
        self._lines: dict[NodeId, EngineLine] = {}
        self._prompt_keys = PromptKeys()
        self._begun = LastPlaces[_Begun]()
        """Where requests go on of which one engine was asked for the first token alone."""

    def opened(self, line: EngineLine) -> None:
        """Follow an engine from now on."""
        number = self._nodes[line.engine] = NodeId(next(self._numbers))
        self._lines[number] = line
        self._ingress.handle(NodeFound(node=number, name=line.engine), self._clock())
        _ask(line)

    def lost(self, line: EngineLine) -> None:
        """Forget what was known of an engine."""
        number = self._nodes.pop(line.engine, None)
        if number is not None:
            del self._lines[number]
            self._ingress.handle(NodeGone(node=number), self._clock())
        self._figures.forget(line.engine)

    def hear(self, line: EngineLine, news: EngineNews) -> None:
        """Take in what an engine tells, and ask for what comes next."""
        node, now_s = self._nodes[line.engine], self._clock()
        if news.is_anew:
            self._ingress.handle(FollowingBegun(node=node), now_s)
        keys = KvNews(events=news.events, is_whole=news.is_whole)
        self._ingress.handle(NodeNews(node=node, news=keys), now_s)
        if news.report is not None:
            self._ingress.handle(NodeReported(node=node, report=news.report), now_s)
        self._figures.note_keys(line.engine, self._ingress.num_keys(node))
        _ask(line)

    def choose(
        self, lines: Sequence[EngineLine], message: SubmitRequest | PrefetchPrompt
    ) -> tuple[EngineLine, SubmitRequest | PrefetchPrompt]:
        """The engine where the answer comes soonest; while none has told its load, by session.

        So are prefetches, which nobody waits for. What another engine has computed goes on where
        that was foreseen.
        """
        if isinstance(message, PrefetchPrompt):
            return by_session(lines, message), message
        by_node = {self._nodes[line.engine]: line for line in lines}
        begun = self._begun.place_of(message.request_id)
        if begun is not None and len(message.earlier_output) and begun.then in by_node:
            self._ingress.go_on(begun.asked_as, begun.then, _name(message.asking))
            line = by_node[begun.then]
            self._begun.remember(message.request_id, replace(begun, expected_as=None))
            return line, self.joins(line, replace(message, expected_as=begun.expected_as))

        # What was foreseen for an earlier asking of this id counts no more.
        self._take_back(message.request_id)
        self._begun.forget(message.request_id)
        route = self._ingress.route(self._asking(message), self._clock(), by_node.keys())
        if route is None:
            line = by_session(lines, message)
            return line, self.joins(line, message)
        self._figures.count(route)
        if route.then is not None:
            message = self._split(message, route.then.node)
            if route.then.shares_l2:
                self._foretell(message, route)
        return by_node[route.node], message

    def joins(
        self, line: EngineLine, message: SubmitRequest | PrefetchPrompt
    ) -> SubmitRequest | PrefetchPrompt:
        """Count what goes to an engine that was not chosen here, such as a further sample.

        That goes on where the first sample does.
        """
        if isinstance(message, SubmitRequest):
            self._ingress.note_sent(self._nodes[line.engine])
            first = self._begun.place_of(message.sample_of)
            if first is not None and _may_be_split(message):
                return self._split(message, first.then)
        return message

    def _split(self, message: SubmitRequest, then: NodeId) -> SubmitRequest:
        """What asks for the first token alone."""
        self._begun.remember(message.request_id, _Begun(_name(message.asking), then))
        return replace(message, goes_on_elsewhere=True)

    def _foretell(self, message: SubmitRequest, route: Route) -> None:
        """Tell the engine where a request goes on that it will: it has pages of L1 by then."""
        assert route.then is not None, "it goes on"
        number, line = route.then.node, self._lines[route.then.node]
        told = ExpectRequest(
            asking=message.asking,
            token_ids=message.token_ids,
            within_s=_EXPECTED_S + _EXPECTED_TIMES * route.first_token_s,
            cache_salt=message.cache_salt,
            priority=message.priority,
        )
        # Of a link that is lost its reader tells.
        with contextlib.suppress(EngineDead):
            line.send(told)
            begun = _Begun(_name(message.asking), number, expected_as=message.asking)
            self._begun.remember(message.request_id, begun)

    def _take_back(self, request_id: RequestId) -> None:
        """What was foretold of a request will not be: nobody has to keep anything for it."""
        begun = self._begun.place_of(request_id)
        if begun is None or begun.expected_as is None:
            return
        self._begun.remember(request_id, replace(begun, expected_as=None))
        if (line := self._lines.get(begun.then)) is not None:
            with contextlib.suppress(EngineDead):
                line.send(AbortRequest(asking=begun.expected_as, request_id=request_id))

    def answered(self, asking: AskingId, request_id: RequestId, *, is_last: bool) -> None:
        """The first tokens of an asking have come, or there will be none."""
        if not is_last:
            self._prompt_keys.forget(request_id)
        if is_last:
            self._ingress.release(_name(asking))
            return
        now_s = self._clock()
        late_s = self._ingress.note_first_token(_name(asking), now_s)
        if late_s is not None:
            self._figures.observe(late_s)
        gap_s = self._ingress.note_next_token(_name(asking), now_s)
        if gap_s is not None:
            self._figures.observe_hand_over(gap_s)

    def ended(self, asking: AskingId, request_id: RequestId) -> None:
        """An asking has ended, and nothing goes on elsewhere: who expects the rest is told."""
        self._prompt_keys.forget(request_id)
        begun = self._begun.place_of(request_id)
        if begun is not None and begun.asked_as == _name(asking):
            self._take_back(request_id)

    def route_of(self, asking: AskingId) -> Route | None:
        """Why an asking has gone where it has, until its first token has come."""
        return self._ingress.route_of(_name(asking))

    def predict_s(self, lines: Sequence[EngineLine], message: SubmitRequest) -> float:
        """The least time to the next token that is predicted of these engines."""
        nodes = [self._nodes[line.engine] for line in lines]
        return self._ingress.first_token_s(self._asking(message), self._clock(), nodes) or 0.0

    def _asking(self, message: SubmitRequest) -> Asking:
        return Asking(
            request_id=_name(message.asking),
            keys=self._prompt_keys.of(
                message.request_id,
                message.token_ids,
                message.cache_salt,
                self._ingress.page_sizes,
            ),
            num_tokens=len(message.token_ids),
            session_id=message.session_id,
            may_be_split=_may_be_split(message),
            is_one_token=message.max_tokens == 1,
        )


def _may_be_split(message: SubmitRequest) -> bool:
    """Whether an engine may be asked for the first token of an output, and another for the rest."""
    return message.max_tokens != 1 and not len(message.earlier_output)


def _ask(line: EngineLine) -> None:
    """Ask for news; of a link that is lost its reader tells."""
    with contextlib.suppress(EngineDead):
        line.send(FollowEngine())


def _name(asking: AskingId) -> RequestId:
    """What the ingress calls an asking: a request's own name may come again in another one."""
    return RequestId(str(asking))
