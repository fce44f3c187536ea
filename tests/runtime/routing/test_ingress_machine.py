"""An ingress beside a naive model: nodes come, go, return, say wrong and stale things."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raydix.ids import NodeId, RequestId
from raydix.runtime.messages.kv_events import KvNews, PagesStored, Tier
from raydix.runtime.routing.events import FollowingBegun, NodeGone, NodeNews
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.key_filter import hashed, words_of
from raydix.runtime.routing.policies import SoonestNode
from tests.runtime.routing.told import (
    PAGE_SIZE,
    asking,
    found,
    removed,
    reported,
    short_keys,
    stored,
)

_NAMES = ("n0", "n1", "n2")
_places = st.sampled_from([(Tier.L1, 0), (Tier.L1, 1), (Tier.L2, None)])
_chains = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(1, 6))
_any_node = st.integers(0, 4)
"""Mostly one of those that are there, by its place among them; else one that is not."""


def pages_of(family: int, start: int, stop: int) -> range:
    """A run of pages of one of a few chains."""
    return range(100 * family + start, 100 * family + stop)


class Model:
    """What is known of a node, in sets."""

    def __init__(self) -> None:
        self.held: dict[tuple[Tier, int | None], set[int]] = {}
        self.told: dict[tuple[Tier, int | None], set[int]] | None = None
        self.has_reported = False
        self.coming: dict[str, set[int]] = {}
        self.ended: dict[str, set[int]] = {}

    def num_there(self, chain: range) -> int:
        """Leading pages that some tier holds, and behind them those that requests bring."""
        tiers = set().union(*self.held.values())
        coming = set().union(*self.coming.values(), *self.ended.values())
        num = 0
        while num < len(chain) and chain[num] in tiers:
            num += 1
        while num < len(chain) and chain[num] in coming:
            num += 1
        return num


class IngressMachine(RuleBasedStateMachine):
    """Events in any order, of nodes that are there, have gone, or never were."""

    def __init__(self) -> None:
        super().__init__()
        self.ingress = Ingress(SoonestNode())
        self.nodes: dict[int, Model] = {}
        self.num_found = 0
        self.num_sent = 0
        self.now_s = 0.0
        for name in _NAMES[:2]:
            self.come(name)
        for node in self.nodes:
            self.ingress.handle(reported(node), self.now_s)
            self.nodes[node].has_reported = True

    def number_of(self, which: int) -> int:
        """The number of the node that a rule is about: one that is there, has gone or never was."""
        there = sorted(self.nodes)
        gone = sorted(set(range(self.num_found)) - self.nodes.keys())
        return [*there, *gone[-1:], self.num_found + 5][: which + 1][-1]

    @rule(name=st.sampled_from(_NAMES))
    def come(self, name: str) -> None:
        if len(self.nodes) < len(_NAMES):
            self.ingress.handle(found(self.num_found, name), self.now_s)
            self.nodes[self.num_found] = Model()
            self.num_found += 1

    @rule(which=_any_node, is_sure=st.sampled_from([False, False, False, True]))
    def go(self, which: int, is_sure: bool) -> None:
        node = self.number_of(which)
        if node in self.nodes and not is_sure:
            return
        lost = self.ingress.handle(NodeGone(node=NodeId(node)), self.now_s)
        model = self.nodes.pop(node, None)
        assert set(lost) == (set() if model is None else set(model.coming))

    @rule(which=_any_node, place=_places, chain=_chains)
    def store(
        self, which: int, place: tuple[Tier, int | None], chain: tuple[int, int, int]
    ) -> None:
        node = self.number_of(which)
        pages = pages_of(*chain)
        self.ingress.handle(stored(node, pages, *place), self.now_s)
        if model := self.nodes.get(node):
            (model.held if model.told is None else model.told).setdefault(place, set()).update(
                pages
            )
            self._complete(model)

    @rule(which=_any_node, place=_places, chain=_chains)
    def remove(
        self, which: int, place: tuple[Tier, int | None], chain: tuple[int, int, int]
    ) -> None:
        node = self.number_of(which)
        pages = pages_of(*chain)
        self.ingress.handle(removed(node, pages, *place), self.now_s)
        if model := self.nodes.get(node):
            held = model.held if model.told is None else model.told
            held.setdefault(place, set()).difference_update(pages)
            self._complete(model)

    @rule(which=_any_node, chain=_chains)
    def tell_anew(self, which: int, chain: tuple[int, int, int]) -> None:
        node = self.number_of(which)
        pages = pages_of(*chain)
        event = PagesStored(tier=Tier.L2, lane=None, group=0, keys=short_keys(pages))
        news = KvNews(events=(event,), is_whole=False)
        self.ingress.handle(FollowingBegun(node=NodeId(node)), self.now_s)
        self.ingress.handle(NodeNews(node=NodeId(node), news=news), self.now_s)
        if model := self.nodes.get(node):
            model.told = {(Tier.L2, None): set(pages)}

    @rule(
        which=_any_node,
        num_seen=st.integers(0, 40),
        busy_s=st.sampled_from([0.0, 0.0, 0.05, 1e6]),
        busy_fraction=st.sampled_from([0.0, 0.3, 1.0]),
        arrivals_per_s=st.sampled_from([0.0, 0.1, 1e4]),
    )
    def report(self, which: int, **said: float) -> None:
        node = self.number_of(which)
        self.ingress.handle(reported(node, **said), self.now_s)
        if model := self.nodes.get(node):
            model.has_reported = True
            model.ended.clear()

    @rule(family=st.integers(0, 3), stop=st.integers(0, 6), seconds=st.sampled_from([0.0, 0.1, 30]))
    def send(self, family: int, stop: int, seconds: float) -> None:
        self.now_s += seconds
        self.num_sent += 1
        name, pages = f"r{self.num_sent}", pages_of(family, 0, stop)

        route = self.ingress.route(asking(name, pages), self.now_s)

        known = {node for node, model in self.nodes.items() if model.has_reported}
        assert (route is None) == (not known)
        if route is not None:
            assert route.node in known
            model = self.nodes[route.node]
            num_there = model.num_there(pages)
            assert route.num_cached_tokens == num_there * PAGE_SIZE
            assert route.first_token_s > 0
            others = set().union(*model.coming.values(), *model.ended.values())
            model.coming[name] = set(pages[num_there:]) - others

    @rule(family=st.integers(0, 3))
    def look(self, family: int) -> None:
        """What is believed of every node, whichever would be chosen."""
        pages = pages_of(family, 0, 8)
        words = words_of(asking("look", pages).keys[PAGE_SIZE])
        for node, model in self.nodes.items():
            found = self.ingress._nodes[NodeId(node)].find(hashed(words))
            assert found.num_there == model.num_there(pages)

    @rule(age=st.integers(0, 4), is_answered=st.booleans())
    def end(self, age: int, is_answered: bool) -> None:
        name = RequestId(f"r{self.num_sent - age}")
        if is_answered:
            self.ingress.note_first_token(name, self.now_s)
        else:
            self.ingress.release(name, self.now_s)
        for model in self.nodes.values():
            if name in model.coming:
                model.ended[name] = model.coming.pop(name)

    def _complete(self, model: Model) -> None:
        """News that are whole end what is told anew."""
        if model.told is not None:
            model.held, model.told = model.told, None

    @invariant()
    def agrees(self) -> None:
        self.ingress.check()


IngressMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestIngress = IngressMachine.TestCase
