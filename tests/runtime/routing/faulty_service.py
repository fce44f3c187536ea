"""A service on a virtual clock: nodes die, fall silent, lie and come back, and news are late."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.cores.routed_nodes import (
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
    NodeGone,
    NodeNews,
    NodeReported,
)
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.policies import RoutingPolicy

NUM_BLOCKS = 40
SPEED = NodeSpeed(num_blocks=NUM_BLOCKS, prefill_tokens_per_s=10_000.0, start_tokens_per_s=1e4)
REPORT_S = 0.2
LINK_LOST_S = 5.0
"""Seconds after which the link of a node that does not answer is given up."""


class Fault(Enum):
    """What befalls a node."""

    DEATH = "death"
    """It is gone at once, and its link with it."""
    HANG = "hang"
    """It answers nothing, and its link is given up after a while."""
    MUTE = "mute"
    """It goes on, but its news and reports do not come, until its link is given up."""
    LIAR = "liar"
    """It answers nothing and says that it has nothing to do; its link is given up late."""


@dataclass(slots=True)
class _Life:
    number: NodeId
    name: str
    node: RoutedNode
    fault: Fault | None = None


class FaultyService:
    """Owns: the nodes, the ingress, and what has become of each request."""

    def __init__(
        self, policy: RoutingPolicy, names: Sequence[str], clock: Clock, *, news_s: float
    ) -> None:
        self.ingress = Ingress(policy)
        self.clock = clock
        self.answered: dict[int, float] = {}
        self.routes: list[tuple[float, NodeId]] = []
        self.gone: dict[NodeId, float] = {}
        self._news_s = news_s
        self._lives: dict[NodeId, _Life] = {}
        self._requests: dict[int, TraceRequest] = {}
        self._unrouted: list[int] = []
        self._num_seen: dict[NodeId, int] = {}
        self._num_found = 0
        for name in names:
            self._come(name)

    def send(self, number: int, request: TraceRequest) -> None:
        """A request comes, for the first time or again."""
        self._requests[number] = request
        asking = Asking(
            request_id=RequestId(str(number)),
            keys={BLOCK_TOKENS: b"".join(map(key_of, request.blocks))},
            num_tokens=request.num_tokens,
            session_id=str(request.session),
        )
        route = self.ingress.route(asking, self.clock.now_s)
        self.ingress.check()
        if route is None:
            self._unrouted.append(number)
            return
        self.routes.append((self.clock.now_s, route.node))
        self._num_seen[route.node] = route.number
        life = self._lives.get(route.node)
        assert life is not None, "a node that is gone is not asked"
        served = Served(request, self.clock.now_s)
        served.done = lambda: self._answer(number, life)
        if life.fault in (None, Fault.MUTE):
            life.node.take(served, [])

    def befall(self, name: str, fault: Fault) -> None:
        """Something befalls a node, if it is well; it comes back some time after it is given up."""
        for life in list(self._lives.values()):
            if life.name == name and life.fault is None:
                life.fault = fault
                delay_s = {Fault.DEATH: 0.0, Fault.LIAR: 4 * LINK_LOST_S}.get(fault, LINK_LOST_S)
                self.clock.after(delay_s, lambda life=life: self._lose(life))

    def _come(self, name: str) -> None:
        number = NodeId(self._num_found)
        self._num_found += 1

        def tell(news: KeyNews) -> None:
            self.clock.after(self._news_s, lambda: self._tell(number, news))

        node = RoutedNode(number, SPEED, self.clock, tell)
        self._lives[number] = _Life(number, name, node)
        self.ingress.handle(NodeFound(node=number, name=name), self.clock.now_s)
        self._report(number)

    def _tell(self, number: NodeId, news: KeyNews) -> None:
        """News that are on their way come even if the node has gone meanwhile."""
        life = self._lives.get(number)
        if life is not None and life.fault is not None:
            return
        removed = PagesRemoved(tier=Tier.L1, lane=0, group=0, keys=_short(news.removed))
        stored = PagesStored(tier=Tier.L1, lane=0, group=0, keys=_short(news.stored))
        told = KvNews(events=(removed, stored), is_whole=True)
        self.ingress.handle(NodeNews(node=number, news=told), self.clock.now_s)

    def _report(self, number: NodeId) -> None:
        life = self._lives.get(number)
        if life is None or len(self.answered) == len(self._requests) > 0:
            return
        if life.fault in (None, Fault.LIAR):
            busy_s = 0.0 if life.fault else life.node.busy_s()
            report = NodeReport(
                num_seen=self._num_seen.get(number, 0),
                busy_s=busy_s,
                num_requests=life.node.num_waiting,
                arrivals_per_s=life.node.arrivals_per_s(),
                busy_fraction=life.node.busy_fraction(),
                num_ingresses=1,
                prefill=life.node.prefill(),
                load=Line(0.0, 0.0),
                pull=None,
                page_size=BLOCK_TOKENS,
                interval_s=REPORT_S,
            )
            self.ingress.handle(NodeReported(node=number, report=report), self.clock.now_s)
            unrouted, self._unrouted = self._unrouted, []
            for request in unrouted:
                self.send(request, self._requests[request])
        self.clock.after(REPORT_S, lambda: self._report(number))

    def _answer(self, number: int, life: _Life) -> None:
        if life.fault in (None, Fault.MUTE) and life.number in self._lives:
            self.answered.setdefault(number, self.clock.now_s)
            self.ingress.note_first_token(RequestId(str(number)), self.clock.now_s)

    def _lose(self, life: _Life) -> None:
        """The link is given up: what was sent there is sent anew, and later the node comes back."""
        del self._lives[life.number]
        self.gone[life.number] = self.clock.now_s
        lost = self.ingress.handle(NodeGone(node=life.number), self.clock.now_s)
        for name in lost:
            self.send(int(name), self._requests[int(name)])
        self.clock.after(LINK_LOST_S, lambda: self._come(life.name))


def _short(blocks: Sequence[int]) -> ShortKeys:
    return ShortKeys(b"".join(key_of(block)[:MIRROR_KEY_BYTES] for block in blocks))
