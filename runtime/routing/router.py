"""Which engine is asked for a request, and which one goes on with what another has begun. Pure.

A client that routes hears what engines tell, and carries out what is said here: so does the
simulation of one.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from raydix.ids import AskingId, NodeId, RequestId
from raydix.runtime.messages.client import AbortRequest, ExpectRequest, SubmitRequest
from raydix.runtime.messages.kv_events import KvNews
from raydix.runtime.messages.routing import EngineNews
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
from raydix.runtime.routing.prompt_keys import PromptKeys

_EXPECTED_S, _EXPECTED_TIMES = 10.0, 4.0
"""An engine expects what is to go on there for so long, and so many times its first token's time.
"""


@dataclass(frozen=True, slots=True)
class Said:
    """Something to tell an engine that is not answered."""

    node: NodeId
    message: ExpectRequest | AbortRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Where a request is to be sent."""

    node: NodeId | None
    """None: no engine has told its load yet, so any of them is as good."""
    message: SubmitRequest
    """What is asked there: perhaps the first token alone."""
    route: Route | None
    """Why; None for what goes on where that was foreseen, and where nothing is known."""
    said: tuple[Said, ...]
    """What is to be told before."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What the first tokens of an asking have shown."""

    late_s: float | None = None
    """The delay of its first token beyond what was predicted, where anything was."""
    hand_over_s: float | None = None
    """The seconds since the first token, which came from another engine."""


_NOTHING_NEW = Answered()


@dataclass(frozen=True, slots=True)
class _Begun:
    """What one engine was asked for the first token of."""

    asked_as: RequestId
    """What the ingress calls that asking."""
    then: NodeId
    """Where the request goes on."""
    expected_as: AskingId | None = None
    """The asking by which it was foretold there; None: it was not."""


class Router:
    """Owns: the ingress of one client, and where requests go on that have begun elsewhere.

    A link to an engine is a node of its own: what was known of an engine ends with its link.
    """

    def __init__(self, policy: RoutingPolicy) -> None:
        self._ingress = Ingress(policy)
        self._prompt_keys = PromptKeys()
        self._begun = LastPlaces[_Begun]()
        """Where requests go on of which one engine was asked for the first token alone."""

    def find(self, node: NodeId, name: str, now_s: float) -> None:
        """There is a new link to an engine, which is to be followed."""
        self._ingress.handle(NodeFound(node=node, name=name), now_s)

    def lose(self, node: NodeId, now_s: float) -> None:
        """The link to an engine is lost."""
        self._ingress.handle(NodeGone(node=node), now_s)

    def hear(self, node: NodeId, news: EngineNews, now_s: float) -> None:
        """Take in what an engine tells."""
        if news.is_anew:
            self._ingress.handle(FollowingBegun(node=node), now_s)
        keys = KvNews(events=news.events, is_whole=news.is_whole)
        self._ingress.handle(NodeNews(node=node, news=keys), now_s)
        if news.report is not None:
            self._ingress.handle(NodeReported(node=node, report=news.report), now_s)

    def num_keys(self, node: NodeId) -> int:
        """How many pages are known of an engine."""
        return self._ingress.num_keys(node)

    def send(self, message: SubmitRequest, among: Collection[NodeId], now_s: float) -> Sending:
        """The engine where the answer comes soonest; what goes on goes where that was foreseen.

        `among`: the engines that can be asked.
        """
        begun = self._begun.place_of(message.request_id)
        if begun is not None and len(message.earlier_output) and begun.then in among:
            self._ingress.go_on(begun.asked_as, begun.then, _name(message.asking))
            self._begun.remember(message.request_id, replace(begun, expected_as=None))
            rest = self.joins(begun.then, replace(message, expected_as=begun.expected_as))
            return Sending(node=begun.then, message=rest, route=None, said=())

        said = self.forget(message.request_id)
        route = self._ingress.route(self._asking(message), now_s, among)
        if route is None:
            return Sending(node=None, message=message, route=None, said=said)
        if route.then is not None:
            message = self._split(message, route.then.node)
            if route.then.shares_l2:
                said = (*said, self._foretell(message, route, route.then.node))
        return Sending(node=route.node, message=message, route=route, said=said)

    def forget(self, request_id: RequestId) -> tuple[Said, ...]:
        """What was foreseen for an earlier asking of this id counts no more, wherever it goes."""
        if (begun := self._begun.place_of(request_id)) is not None:
            self._ingress.give_up(begun.asked_as)
        said = self._take_back(request_id)
        self._begun.forget(request_id)
        return said

    def joins(self, node: NodeId, message: SubmitRequest) -> SubmitRequest:
        """Count what goes to an engine that was not chosen here, such as a further sample.

        That goes on where the first sample does, unless it begins there.
        """
        self._ingress.note_sent(node)
        first = self._begun.place_of(message.sample_of)
        if first is not None and first.then != node and _may_be_split(message):
            return self._split(message, first.then)
        return message

    def _split(self, message: SubmitRequest, then: NodeId) -> SubmitRequest:
        """What asks for the first token alone."""
        self._begun.remember(message.request_id, _Begun(_name(message.asking), then))
        return replace(message, goes_on_elsewhere=True)

    def _foretell(self, message: SubmitRequest, route: Route, then: NodeId) -> Said:
        """Tell the engine where a request goes on that it will: it has pages of L1 by then."""
        told = ExpectRequest(
            asking=message.asking,
            token_ids=message.token_ids,
            within_s=_EXPECTED_S + _EXPECTED_TIMES * route.first_token_s,
            cache_salt=message.cache_salt,
            priority=message.priority,
        )
        begun = _Begun(_name(message.asking), then, expected_as=message.asking)
        self._begun.remember(message.request_id, begun)
        return Said(then, told)

    def _take_back(self, request_id: RequestId) -> tuple[Said, ...]:
        """What was foretold of a request will not be: nobody has to keep anything for it."""
        begun = self._begun.place_of(request_id)
        if begun is None or begun.expected_as is None:
            return ()
        self._begun.remember(request_id, replace(begun, expected_as=None))
        return (Said(begun.then, AbortRequest(asking=begun.expected_as, request_id=request_id)),)

    def answered(
        self, asking: AskingId, request_id: RequestId, now_s: float, *, is_last: bool
    ) -> Answered:
        """The first tokens of an asking have come, or there will be none."""
        if is_last:
            self._ingress.release(_name(asking), now_s)
            return _NOTHING_NEW
        self._prompt_keys.forget(request_id)
        late_s = self._ingress.note_first_token(_name(asking), now_s)
        hand_over_s = self._ingress.note_next_token(_name(asking), now_s)
        # Every token comes by here, and two of an answer show something.
        if late_s is None and hand_over_s is None:
            return _NOTHING_NEW
        return Answered(late_s, hand_over_s)

    def ended(self, asking: AskingId, request_id: RequestId) -> tuple[Said, ...]:
        """An asking has ended, and nothing goes on elsewhere: who expects the rest is told."""
        self._prompt_keys.forget(request_id)
        self._ingress.give_up(_name(asking))
        begun = self._begun.place_of(request_id)
        if begun is not None and begun.asked_as == _name(asking):
            return self._take_back(request_id)
        return ()

    def route_of(self, asking: AskingId) -> Route | None:
        """Why an asking has gone where it has, until its first token has come."""
        return self._ingress.route_of(_name(asking))

    def predict_s(self, message: SubmitRequest, among: Collection[NodeId], now_s: float) -> float:
        """The least time to the next token that is predicted of these engines."""
        return self._ingress.first_token_s(self._asking(message), now_s, among) or 0.0

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


def _name(asking: AskingId) -> RequestId:
    """What the ingress calls an asking: a request's own name may come again in another one."""
    return RequestId(str(asking))
