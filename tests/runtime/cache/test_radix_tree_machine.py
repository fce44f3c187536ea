"""Requests, evictions and flushes in any order, against a dict of chains and sets of pages."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raydix.ids import PageKey
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.page_key import root_key
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.config.policies import EvictionPolicy
from tests.runtime.cache.checked_cache import CheckedCache, Found
from tests.runtime.cache.model_radix_tree import Cache

IDENTITIES = (root_key(), root_key(cache_salt="tenant"))
LAYOUTS: list[tuple[int | None, ...]] = [
    (None,),
    (None, None),
    (None, 1),
    (None, 3),
    (1, None, 3),
    (1,),
    (3,),
    (3, 1),
]
"""How many pages each group reaches back: FULL groups, WINDOW groups, and WINDOW groups alone."""
SYMBOLS = st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=1, max_size=7)
"""Few enough that prompts share, extend and diverge all the time, behind long runs that they share.
"""
IDENTITY = st.sampled_from(IDENTITIES)


class TreeMachine(RuleBasedStateMachine):
    """The tree and its pools agree with the model after every step, and no page is lost."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        eviction=st.sampled_from(sorted(EVICTION_POLICIES)),
        reaches=st.sampled_from(LAYOUTS),
    )
    def build(
        self, page_size: int, eviction: EvictionPolicy, reaches: tuple[int | None, ...]
    ) -> None:
        self.checked = CheckedCache(page_size=page_size, eviction=eviction, reaches=reaches)
        self.matches: list[Found] = []

    @rule(symbols=SYMBOLS, identity=IDENTITY, num_partial=st.integers(0, 15))
    def match(self, symbols: list[int], identity: PageKey, num_partial: int) -> None:
        self.matches.append(self.checked.match(symbols, identity, num_partial))

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.matches) - 1))
        self.checked.start(self.matches.pop(index), data.draw(st.integers(0, 2)))

    @precondition(lambda self: self.checked.running)
    @rule(
        data=st.data(),
        symbols=SYMBOLS,
        segment=st.sampled_from(Segment),
        priority=st.integers(-2, 2),
        num_partial=st.integers(0, 15),
        num_behind=st.integers(0, 4),
    )
    def extend(
        self,
        data: st.DataObject,
        symbols: list[int],
        segment: Segment,
        priority: int,
        num_partial: int,
        num_behind: int,
    ) -> None:
        index = data.draw(st.integers(0, len(self.checked.running) - 1))
        self.checked.extend(index, symbols, segment, priority, num_partial, num_behind)

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data(), num_pages=st.integers(0, 9), num_behind=st.integers(0, 4))
    def heal(self, data: st.DataObject, num_pages: int, num_behind: int) -> None:
        index = data.draw(st.integers(0, len(self.checked.running) - 1))
        self.checked.heal(index, num_pages, num_behind)

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.checked.finish(data.draw(st.integers(0, len(self.checked.running) - 1)))

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.checked.withdraw(data.draw(st.integers(0, len(self.checked.running) - 1)))

    @rule(symbols=SYMBOLS, identity=IDENTITY, priority=st.integers(-2, 2))
    def serve(self, symbols: list[int], identity: PageKey, priority: int) -> None:
        self.checked.serve(symbols, identity, priority)

    @rule(symbols=SYMBOLS, identity=IDENTITY)
    def touch(self, symbols: list[int], identity: PageKey) -> None:
        cache = self.checked.cache
        cache.tree.touch(self.checked.match(symbols, identity).match, now_s=cache.tick())

    @precondition(lambda self: any(map(self.checked.tree.num_evictable_pages, self.checked.groups)))
    @rule(num_pages=st.tuples(*[st.integers(0, 12)] * 3))
    def evict(self, num_pages: tuple[int, ...]) -> None:
        self.checked.evict(num_pages[: len(self.checked.groups)])

    @rule(num_pages=st.integers(1, 12))
    def evict_from_the_last_group(self, num_pages: int) -> None:
        self.checked.evict([*[0] * (len(self.checked.groups) - 1), num_pages])

    @rule(num_pages=st.integers(0, 12))
    def inspect_ahead(self, num_pages: int) -> None:
        self.checked.inspect_ahead(num_pages)

    @precondition(lambda self: self.checked.tree.num_evictable_pages(0) >= 24)
    @rule()
    def flush(self) -> None:
        self.checked.flush()

    @invariant()
    def owners_agree_with_the_model(self) -> None:
        self.checked.check()

    def teardown(self) -> None:
        self.checked.end()


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=200, stateful_step_count=40)


def random_step(checked: CheckedCache, rng: np.random.Generator) -> None:
    symbols = rng.choice(3, p=[0.8, 0.1, 0.1], size=rng.integers(1, 9)).tolist()
    identity = IDENTITIES[int(rng.random() < 0.2)]
    num_running = len(checked.running)
    num_behind = int(rng.integers(0, 4))
    match rng.integers(0, 10):
        case 0 | 1:
            checked.serve(symbols, identity, int(rng.integers(-2, 3)))
        case 2 | 3 if num_running < 5:
            checked.start(checked.match(symbols, identity), int(rng.integers(0, 3)))
        case 4 if num_running:
            checked.extend(
                int(rng.integers(num_running)),
                symbols,
                list(Segment)[int(rng.integers(2))],
                int(rng.integers(-2, 3)),
                num_behind=num_behind,
            )
        case 5 if num_running:
            checked.finish(int(rng.integers(num_running)))
        case 6:
            checked.evict([int(rng.integers(0, 13) * rng.integers(2)) for _ in checked.groups])
        case 7 if num_running:
            checked.heal(int(rng.integers(num_running)), int(rng.integers(9)), num_behind)
        case _:
            checked.inspect_ahead(int(rng.integers(1, 40)))


@pytest.mark.parametrize(
    ("page_size", "reaches"), [(1, (None,)), (4, (None,)), (16, (None,)), (4, (None, 3)), (1, (2,))]
)
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_a_long_random_run_loses_no_page(
    policy: EvictionPolicy, page_size: int, reaches: tuple[int | None, ...]
) -> None:
    rng = np.random.default_rng(page_size)
    checked = CheckedCache(page_size=page_size, eviction=policy, reaches=reaches)
    for _ in range(150):
        random_step(checked, rng)
        checked.check()
    checked.end()


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_equal_histories_evict_equally(policy: EvictionPolicy) -> None:
    def victims() -> list[bytes]:
        cache = Cache(page_size=1, eviction=policy)
        for number in range(60):
            cache.run([number % 3, number % 7, number % 5, number], priority=number % 4)
        return [victim.keys for victim in cache.evict(100)]

    assert victims() == victims()
