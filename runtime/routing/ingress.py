"""The core of an ingress: which nodes there are, and which of them gets a request. Pure.

Ingresses say nothing to each other: each follows the same nodes, and hears of the requests of
others in their reports.
"""

from dataclasses import dataclass, replace

from raydix.ids import NodeId, RequestId
from raydix.runtime.routing.events import (
    Asking,
    FollowingBegun,
    NodeEvent,
    NodeFound,
    NodeGone,
    NodeNews,
    NodeReport,
    Route,
)
from raydix.runtime.routing.key_filter import words_of
from raydix.runtime.routing.last_places import LastPlaces
from raydix.runtime.routing.node import Holding, Need, Node
from raydix.runtime.routing.policies import RoutingPolicy


@dataclass(slots=True)
class RoutingFigures:
    """Counts of one ingress since it began."""

    num_routed: int = 0
    num_first_tokens: int = 0
    """First tokens that have come of what was routed."""
    first_token_s: float = 0.0
    """The time that they took, summed up."""
    error_s: float = 0.0
    """Seconds by which predictions were wrong, in either direction, summed up."""


@dataclass(frozen=True, slots=True)
class _Sent:
    route: Route
    sent_s: float


class Ingress:
    """Owns: the nodes that one ingress knows, and the requests it has sent whose first token has
    not come.
    """

    def __init__(self, policy: RoutingPolicy, *, page_size: int) -> None:
        self._policy = policy
        self._page_size = page_size
        self._nodes: dict[NodeId, Node] = {}
        self._sent: dict[RequestId, _Sent] = {}
        self._last_nodes = LastPlaces()
        self.figures = RoutingFigures()

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
            case NodeReport():
                node.hear(event, now_s)
            case NodeGone():
                del self._nodes[event.node]
                lost = [name for name, sent in self._sent.items() if sent.route.node == event.node]
                for name in lost:
                    del self._sent[name]
                return tuple(lost)
        return ()

    def route(self, asking: Asking, now_s: float) -> Route | None:
        """Choose a node for a request, and count it there; None: no node can be asked now."""
        known = [(number, node) for number, node in self._nodes.items() if node.is_known()]
        if not known:
            return None
        # The last token is computed in any case, and with it its page.
        num_pages = max(0, asking.num_tokens - 1) // self._page_size
        words = words_of(asking.keys)[:num_pages]
        needs = self._needs(asking, [(node, node.find(words)) for _, node in known], now_s)

        last = self._last_nodes.place_of(asking.session_id)
        places = [
            replace(need.place, is_preferred=number == last)
            for (number, _), need in zip(known, needs, strict=True)
        ]
        chosen = self._policy.choose(asking, [node.name for _, node in known], places)
        (number, node), need = known[chosen], needs[chosen]
        if asking.session_id is not None:
            self._last_nodes.remember(asking.session_id, number)

        self.release(asking.request_id)
        route = Route(
            node=number,
            name=node.name,
            number=node.book(asking.request_id, words, need, now_s),
            first_token_s=need.place.first_token_s,
            num_cached_tokens=need.num_cached_pages * self._page_size,
            num_pulled_tokens=need.num_pulled_pages * self._page_size,
        )
        self._sent[asking.request_id] = _Sent(route, now_s)
        self.figures.num_routed += 1
        return route

    def note_first_token(self, request_id: RequestId, now_s: float) -> None:
        """The first token of a request has come, which shows how wrong the prediction was."""
        sent = self._sent.get(request_id)
        if sent is None:
            return
        took_s = now_s - sent.sent_s
        self.figures.num_first_tokens += 1
        self.figures.first_token_s += took_s
        self.figures.error_s += abs(took_s - sent.route.first_token_s)
        self.release(request_id)

    def release(self, request_id: RequestId) -> None:
        """A request has ended, or its first token has come; others change nothing."""
        sent = self._sent.pop(request_id, None)
        if sent is not None and (node := self._nodes.get(sent.route.node)) is not None:
            node.release(request_id)

    def _needs(self, asking: Asking, found: list[tuple[Node, Holding]], now_s: float) -> list[Need]:
        """What it takes to serve a request on each of these nodes."""
        most = Holding(
            num_near=max(holding.num_near for _, holding in found),
            num_held=max(holding.num_held for _, holding in found),
            num_there=max(holding.num_there for _, holding in found),
        )
        return [
            node.need(
                holding,
                num_tokens=asking.num_tokens,
                page_size=self._page_size,
                elsewhere=most,
                now_s=now_s,
            )
            for node, holding in found
        ]

    def check(self) -> None:
        """Raise AccountingError unless every owner's figures agree."""
        for node in self._nodes.values():
            node.check()
