"""The core of an ingress: which nodes there are, and which of them gets a request. Pure.

Ingresses say nothing to each other: each follows the same nodes, and hears of the requests of
others in their reports.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from raydix.ids import NodeId, RequestId
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.routing.choice import Place
from raydix.runtime.routing.events import (
    Asking,
    FollowingBegun,
    NextNode,
    NodeEvent,
    NodeFound,
    NodeGone,
    NodeNews,
    NodeReported,
    Route,
)
from raydix.runtime.routing.hand_over_times import HandOverTimes, Way
from raydix.runtime.routing.key_filter import Words, hashed, words_of
from raydix.runtime.routing.last_places import LastPlaces
from raydix.runtime.routing.node import Holding, Need, Node
from raydix.runtime.routing.policies import RoutingPolicy
from raydix.runtime.routing.split import Split, TakeOver, choose_split


@dataclass(frozen=True, slots=True)
class _Sent:
    route: Route
    sent_s: float
    split: Split | None


@dataclass(frozen=True, slots=True)
class _Found:
    """A node that can be asked, and what it has of a prompt."""

    number: NodeId
    node: Node
    page_size: int
    holding: Holding
    num_joining: int
    """Requests that are being handed over to it."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What it would take to serve a prompt on a node."""

    found: _Found
    need: Need
    place: Place

    @property
    def number(self) -> NodeId:
        return self.found.number

    @property
    def name(self) -> str:
        return self.found.node.name

    @property
    def role(self) -> EngineRole:
        return self.found.node.role

    def disturbing(self) -> "_Offer":
        """The same, where what those wait who decode there counts, too."""
        caused_s = self.place.caused_s + self.need.delayed_s
        return replace(self, place=replace(self.place, caused_s=caused_s))

    def take_over(self, first: "_Offer", num_tokens: int, now_s: float) -> TakeOver | None:
        """What it takes that the prompt goes on here whose first token comes from `first`."""
        here = self.found
        return here.node.take_over(
            here.holding,
            first.found.node,
            num_tokens=num_tokens,
            after_s=first.place.first_token_s,
            num_joining=here.num_joining,
            now_s=now_s,
        )


class Ingress:
    """Owns: the nodes that one ingress knows, the requests it has sent whose first token has not
    come, and what hand-overs between these nodes have taken.
    """

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy
        self._nodes: dict[NodeId, Node] = {}
        self._sent: dict[RequestId, _Sent] = {}
        self._last_nodes = LastPlaces[int]()
        self._hand_overs = HandOverTimes()

    def handle(self, event: NodeEvent, now_s: float) -> tuple[RequestId, ...]:
        """Follow what is told of a node; what concerns one that is not known is stale.

        Returns the requests that were sent to a node that has gone: they are forgotten here, and to
        be routed anew.
        """
        if isinstance(event, NodeFound):
            self._nodes[event.node] = Node(event)
            return ()
        node = self._nodes.get(event.node)
        if node is None:
            return ()

        match event:
            case FollowingBegun():
                node.begin_following()
            case NodeNews():
                node.follow(event.news)
            case NodeReported():
                node.hear(event.report, now_s)
            case NodeGone():
                del self._nodes[event.node]
                self._hand_overs.forget(event.node)
                lost = [name for name, sent in self._sent.items() if sent.route.node == event.node]
                for name in lost:
                    self.release(name, now_s)
                return tuple(lost)
        return ()

    @property
    def page_sizes(self) -> frozenset[int]:
        """The page sizes of the nodes that have reported."""
        sizes = (node.page_size for node in self._nodes.values())
        return frozenset(size for size in sizes if size is not None)

    def num_keys(self, node: NodeId) -> int:
        """How many pages are known of a node that is there, in all its tiers."""
        return self._nodes[node].num_keys

    def route_of(self, request_id: RequestId) -> Route | None:
        """Where a request was sent, as long as its first token has not come."""
        sent = self._sent.get(request_id)
        return None if sent is None else sent.route

    def note_sent(self, node: NodeId) -> None:
        """A request is sent to a node that was not chosen here: those of all are counted there."""
        if node in self._nodes:
            self._nodes[node].note_sent()

    def route(
        self, asking: Asking, now_s: float, among: Collection[NodeId] | None = None
    ) -> Route | None:
        """Choose a node for a request, and count it there; None: no node can be asked now.

        `among`: the nodes that can be asked, as far as is known here; None: all of them.
        """
        offers = self._offers(asking, now_s, among)
        if not offers:
            return None
        chosen = self._choose(asking, offers, now_s)
        split = chosen if isinstance(chosen, Split) else None
        offer = chosen if isinstance(chosen, _Offer) else offers[chosen.first]
        if asking.session_id is not None:
            last_node = offer.number if split is None else split.then
            self._last_nodes.remember(asking.session_id, last_node)

        self.release(asking.request_id, now_s)
        if split is not None:
            self._nodes[split.then].expect(asking.request_id)
        return self._send(asking, offer, split, now_s)

    def first_token_s(
        self, asking: Asking, now_s: float, among: Collection[NodeId]
    ) -> float | None:
        """How soon one of these nodes would give the first token; None: nothing is known of them.

        Nothing is counted.
        """
        offers = self._offers(asking, now_s, among).values()
        return min((offer.place.first_token_s for offer in offers), default=None)

    def _offers(
        self, asking: Asking, now_s: float, among: Collection[NodeId] | None
    ) -> dict[NodeId, _Offer]:
        """What each node that has reported would take for a request."""
        keys = {size: hashed(_usable_words(asking, size)) for size in self.page_sizes}
        found = [
            _Found(
                number,
                node,
                node.page_size,
                node.find(keys[node.page_size]),
                self._hand_overs.num_to(number),
            )
            for number, node in self._nodes.items()
            if node.page_size is not None and (among is None or number in among)
        ]
        last = self._last_nodes.place_of(asking.session_id)
        return {
            each.number: _Offer(each, need, replace(need.place, is_preferred=each.number == last))
            for each, need in zip(found, _needs(asking, found, now_s), strict=True)
        }

    def _choose(
        self, asking: Asking, offers: Mapping[NodeId, _Offer], now_s: float
    ) -> _Offer | Split:
        """The node that gets a request, or the two that share it."""
        firsts = [one for one in offers.values() if one.role is EngineRole.PREFILL]
        if not (self._policy.minds_roles and firsts):
            return self._choose_whole(asking, list(offers.values()))

        # Those who decode wait for what is computed beside them, which here has another choice.
        disturbing = {number: one.disturbing() for number, one in offers.items()}
        lasts = [one for one in disturbing.values() if one.role is not EngineRole.PREFILL]
        wholes = lasts if lasts and not asking.is_one_token else list(disturbing.values())
        whole = self._choose_whole(asking, wholes)
        if not asking.may_be_split:
            return whole
        splits = [
            self._split(first, one, take_over, now_s)
            for first in disturbing.values()
            if first.role is EngineRole.PREFILL
            for one in lasts
            if (take_over := one.take_over(first, asking.num_tokens, now_s)) is not None
        ]
        return choose_split(whole.place, splits) or whole

    def _split(self, first: _Offer, then: _Offer, take_over: TakeOver, now_s: float) -> Split:
        way = Way(first.number, then.number)
        return Split(
            first=first.number,
            then=then.number,
            place=first.place,
            take_over=take_over,
            hand_over_s=self._hand_overs.predict_s(way, take_over.foreseen_s, now_s),
        )

    def _choose_whole(self, asking: Asking, offers: Sequence[_Offer]) -> _Offer:
        names, places = [one.name for one in offers], [one.place for one in offers]
        return offers[self._policy.choose(asking, names, places)]

    def _send(self, asking: Asking, offer: _Offer, split: Split | None, now_s: float) -> Route:
        """Count a request at the node that it is sent to."""
        chosen, need = offer.found, offer.need
        words, page_size = _usable_words(asking, chosen.page_size), chosen.page_size
        following = None
        if split is not None:
            then = self._nodes[split.then]
            shares_l2 = then.shares_l2(chosen.node)
            following = NextNode(node=split.then, name=then.name, shares_l2=shares_l2)
        route = Route(
            node=chosen.number,
            name=chosen.node.name,
            number=chosen.node.book(asking.request_id, words, need, now_s),
            first_token_s=need.place.first_token_s,
            num_cached_tokens=need.num_cached_pages * page_size,
            num_near_tokens=need.place.num_near_pages * page_size,
            num_pulled_tokens=need.num_pulled_pages * page_size,
            then=following,
        )
        self._sent[asking.request_id] = _Sent(route, now_s, split)
        return route

    def note_first_token(self, request_id: RequestId, now_s: float) -> float | None:
        """The first token of a request has come, which shows how wrong the prediction was.

        Returns by how many seconds it was later than predicted; None if nobody waits for it.
        """
        sent = self._sent.get(request_id)
        if sent is None:
            return None
        took_s = now_s - sent.sent_s
        if (node := self._nodes.get(sent.route.node)) is not None:
            node.note_first_token(request_id, now_s)
        self.release(request_id, now_s)
        if sent.split is not None:
            way = Way(sent.split.first, sent.split.then)
            foreseen_s = sent.split.take_over.foreseen_s
            self._hand_overs.begin(request_id, way, foreseen_s, now_s)
        return took_s - sent.route.first_token_s

    def go_on(self, request_id: RequestId, node: NodeId, then_named: RequestId) -> None:
        """The rest of a request whose first token has come is asked of a node, by another name."""
        self._hand_overs.go_on(request_id, node, then_named)

    def give_up(self, request_id: RequestId) -> None:
        """A request has ended, and nothing goes on elsewhere; others change nothing."""
        self._hand_overs.give_up(request_id)

    def note_next_token(self, then_named: RequestId, now_s: float) -> float | None:
        """A token has come of what goes on: how long it took shows what the next ones will take.

        Returns the seconds since its first token; None if it is not the first one there.
        """
        return self._hand_overs.end(then_named, now_s)

    def release(self, request_id: RequestId, now_s: float) -> None:
        """A request has ended, or its first token has come; others change nothing."""
        self._hand_overs.drop(request_id, now_s)
        sent = self._sent.pop(request_id, None)
        if sent is None:
            return
        if (node := self._nodes.get(sent.route.node)) is not None:
            node.release(request_id)
        then = sent.route.then
        if then is not None and (node := self._nodes.get(then.node)) is not None:
            node.stop_expecting(request_id)

    def check(self) -> None:
        """Raise AccountingError unless every owner's figures agree."""
        self._hand_overs.check()
        for node in self._nodes.values():
            node.check()


def _usable_words(asking: Asking, page_size: int) -> Words:
    """The words of the pages that a cache can serve: the last token is computed in any case."""
    num_pages = max(0, asking.num_tokens - 1) // page_size
    return words_of(asking.keys.get(page_size, b""))[:num_pages]


def _needs(asking: Asking, found: Sequence[_Found], now_s: float) -> list[Need]:
    """What it takes to serve a request on each of these nodes."""
    most = {
        page_size: Holding(
            num_near=max(each.holding.num_near for each in found if each.page_size == page_size),
            num_held=max(each.holding.num_held for each in found if each.page_size == page_size),
            num_there=max(each.holding.num_there for each in found if each.page_size == page_size),
        )
        for page_size in {each.page_size for each in found}
    }
    return [
        each.node.need(
            each.holding,
            num_tokens=asking.num_tokens,
            elsewhere=most[each.page_size],
            num_joining=each.num_joining,
            now_s=now_s,
        )
        for each in found
    ]
