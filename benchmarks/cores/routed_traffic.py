"""A trace through ingresses to nodes, on a virtual clock: what it hits, and what it waits."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.cores.routed_nodes import (
    DECODE_S,
    KeyNews,
    NodeSpeed,
    RoutedNode,
    Served,
    key_of,
)
from raydix.ids import NodeId, RequestId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest
from raydix.runtime.messages.kv_events import (
    KvNews,
    PagesRemoved,
    PagesStored,
    ShortKeys,
    Tier,
)
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.routing import NodeReport
from raydix.runtime.routing.events import (
    Asking,
    NodeFound,
    NodeNews,
    NodeReported,
)
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.policies import RoutingPolicy

REPORT_S = 0.1
"""How often nodes report."""
NEWS_S = 0.01
"""How long keys and reports are on their way to ingresses."""


class Router(Protocol):
    """Whatever chooses nodes for requests."""

    def begin(self, nodes: Sequence[RoutedNode], clock: Clock, *, until_s: float) -> None:
        """There are these nodes; the last request comes at `until_s`."""

    def choose(self, number: int, request: TraceRequest) -> int:
        """The node that gets a request."""

    def note_first_token(self, number: int) -> None:
        """The prompt of a request is computed."""

    def note_end(self, number: int) -> None:
        """A request has its last token."""

    def note_keys(self, news: KeyNews) -> None:
        """Keys have left a node, or come to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run."""

    hit_percent: float
    """The part of the prompt tokens that was there."""
    first_token_p50_s: float
    first_token_p90_s: float
    num_computed_tokens: int
    num_elsewhere_tokens: int
    """The tokens that another node had when their request came, and its own one lacked."""
    num_pulled_tokens: int


def drive(
    requests: Sequence[TraceRequest],
    router: Router,
    speeds: Sequence[NodeSpeed],
    clock: Clock,
    *,
    speed_up: float,
) -> Outcome:
    """Serve all requests, which come `speed_up` times as fast as the trace says."""
    nodes: list[RoutedNode] = [
        RoutedNode(index, speed, clock, router.note_keys) for index, speed in enumerate(speeds)
    ]
    all_served: list[Served] = []

    def arrive(number: int, request: TraceRequest) -> None:
        chosen = router.choose(number, request)
        served = Served(request, clock.now_s)
        all_served.append(served)

        def done() -> None:
            router.note_first_token(number)
            answer_s = request.num_answer_tokens * DECODE_S / speed_up
            clock.after(answer_s, lambda: router.note_end(number))

        served.done = done
        peers = [node for index, node in enumerate(nodes) if index != chosen]
        nodes[chosen].take(served, peers)

    for number, request in enumerate(requests):
        clock.after(request.arrival_s / speed_up, _call(arrive, number, request))
    router.begin(nodes, clock, until_s=requests[-1].arrival_s / speed_up)
    clock.run()
    return _outcome(all_served)


def _call(
    act: Callable[[int, TraceRequest], None], number: int, request: TraceRequest
) -> Callable[[], None]:
    return lambda: act(number, request)


def _outcome(all_served: Sequence[Served]) -> Outcome:
    waits = [
        served.first_token_s - served.arrival_s
        for served in all_served
        if served.first_token_s is not None
    ]
    assert len(waits) == len(all_served), "every request is served"
    num_tokens = sum(served.request.num_tokens for served in all_served)
    num_hits = sum(served.num_hit_tokens for served in all_served)
    return Outcome(
        hit_percent=100 * num_hits / num_tokens,
        first_token_p50_s=float(np.quantile(waits, 0.5)),
        first_token_p90_s=float(np.quantile(waits, 0.9)),
        num_computed_tokens=num_tokens - num_hits,
        num_elsewhere_tokens=sum(served.num_elsewhere_tokens for served in all_served),
        num_pulled_tokens=sum(served.num_pulled_tokens for served in all_served),
    )


class Ingresses:
    """Production's ingresses: each request comes to one of them, drawn by chance."""

    def __init__(
        self,
        policies: Sequence[RoutingPolicy],
        *,
        pull: Line | None = None,
        handed_over_at: int | None = None,
    ) -> None:
        """One ingress per policy. `handed_over_at`: the number of the request from which on all go
        to one that is started then.
        """
        self._ingresses = [Ingress(policy) for policy in policies]
        self._policies = policies
        self._pull = pull
        self._handed_over_at = handed_over_at
        self._random = random.Random(7)
        self._by: dict[int, tuple[Ingress, int]] = {}
        self._num_seen: dict[tuple[int, int], int] = {}
        self._clock = Clock()
        self._nodes: Sequence[RoutedNode] = ()
        self.decision_s: list[float] = []

    @property
    def ingresses(self) -> Sequence[Ingress]:
        """All of them."""
        return self._ingresses

    def begin(self, nodes: Sequence[RoutedNode], clock: Clock, *, until_s: float) -> None:
        """Tell the ingresses of the nodes, and let these report until a time."""
        self._nodes, self._clock = nodes, clock
        for ingress in self._ingresses:
            self._introduce(ingress)

        def report() -> None:
            for index, ingress in enumerate(self._ingresses):
                self._report(index, ingress, NEWS_S)
            if clock.now_s < until_s:
                clock.after(REPORT_S, report)

        report()

    def choose(self, number: int, request: TraceRequest) -> int:
        """The node that one of the ingresses chooses."""
        if number == self._handed_over_at:
            late = Ingress(self._policies[0])
            self._ingresses = [late]
            self._introduce(late)
        index = self._random.randrange(len(self._ingresses))
        ingress = self._ingresses[index]
        asking = Asking(
            request_id=RequestId(str(number)),
            keys={BLOCK_TOKENS: b"".join(map(key_of, request.blocks))},
            num_tokens=request.num_tokens,
            session_id=str(request.session),
        )
        route = ingress.route(asking, self._clock.now_s)
        assert route is not None, "all nodes have reported"
        self._by[number] = ingress, route.node
        self._num_seen[id(ingress), route.node] = route.number
        return route.node

    def note_first_token(self, number: int) -> None:
        """The ingress that has sent it passes it on."""
        ingress, _ = self._by[number]
        ingress.note_first_token(RequestId(str(number)), self._clock.now_s)

    def note_end(self, number: int) -> None:
        """Nothing is counted there any more."""
        del self._by[number]

    def note_keys(self, news: KeyNews) -> None:
        """All ingresses hear of it a little later."""
        node, stored = news.node, _stored(news.stored)
        removed = PagesRemoved(tier=Tier.L1, lane=0, group=0, keys=_short_keys(news.removed))
        told = KvNews(events=(removed, stored), is_whole=True)
        changes = NodeNews(node=NodeId(node), news=told)
        ingresses = list(self._ingresses)

        def follow() -> None:
            for ingress in ingresses:
                ingress.handle(changes, self._clock.now_s)

        self._clock.after(NEWS_S, follow)

    def _introduce(self, ingress: Ingress) -> None:
        """Tell an ingress of all nodes and their keys."""
        for index, node in enumerate(self._nodes):
            number = NodeId(index)
            found = NodeFound(node=number, name=f"n{index}")
            news = KvNews(events=(_stored(node.blocks),), is_whole=True)
            for event in (found, NodeNews(node=number, news=news)):
                ingress.handle(event, self._clock.now_s)
        self._report(0, ingress, 0.0)

    def _report(self, index: int, ingress: Ingress, delay_s: float) -> None:
        for number, node in enumerate(self._nodes):
            report = NodeReport(
                num_seen=self._num_seen.get((id(ingress), number), 0),
                busy_s=node.busy_s(),
                num_requests=node.num_waiting,
                arrivals_per_s=node.arrivals_per_s(),
                busy_fraction=node.busy_fraction(),
                num_ingresses=len(self._ingresses),
                prefill=node.prefill(),
                load=Line(0.0, 0.0),
                pull=self._pull,
                page_size=BLOCK_TOKENS,
                interval_s=REPORT_S,
            )
            reported = NodeReported(node=NodeId(number), report=report)
            if delay_s:
                self._clock.after(delay_s, _tell(ingress, reported, self._clock))
            else:
                ingress.handle(reported, self._clock.now_s)


def _stored(blocks: Collection[int]) -> PagesStored:
    return PagesStored(tier=Tier.L1, lane=0, group=0, keys=_short_keys(blocks))


def _short_keys(blocks: Collection[int]) -> ShortKeys:
    return ShortKeys(b"".join(key_of(block)[:MIRROR_KEY_BYTES] for block in blocks))


def _tell(ingress: Ingress, report: NodeReported, clock: Clock) -> Callable[[], None]:
    return lambda: (ingress.handle(report, clock.now_s), None)[1]
