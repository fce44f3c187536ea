"""What L2 learns of reuse: turns of chains, kinds of pages that are read, and who goes first."""

import random

import pytest

from raydix.ids import PageKey, UserId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.page_reuse import PageReuse
from raydix.runtime.cache.host.page_run import PageRun
from raydix.runtime.cache.reuse_chances import ReuseChances, turn_of
from raydix.runtime.cache.standing import Kept, Over
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.quick import HostTier
from raydix.runtime.foresight.traces import TraceRequest
from tests.runtime.cache.host.index_pages import key, make_geometry, publish

A, B = UserId(1), UserId(2)
NAMES = [0, 1, 100, 101, 200, 201]


def learning(num_pages: int) -> HostIndex:
    return HostIndex(make_geometry(1, (num_pages,)), eviction=EvictionPolicy.REUSE)


def serve(index: HostIndex, user: UserId, num_pages: int, now_s: float, first: int = 0) -> None:
    """A request of a chain, whose missing pages come at once."""
    serve_keys(index, user, [key(first + place) for place in range(num_pages)], now_s)


def serve_keys(index: HostIndex, user: UserId, keys: list[PageKey], now_s: float) -> None:
    index.advance(now_s)
    index.begin_use(user)
    index.touch_chain(0, keys, user)
    for each in keys:
        if index.find(0, each) is None:
            page = index.allocate(0)
            assert page is not None
            index.publish(page, each)
    index.end_use(0, keys, user)
    index.rest(user)
    index.check()


def later_turns_are_worth_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that have come back are worth 100 s."""
    monkeypatch.setattr(PageReuse, "worth_s", lambda self, run: 100.0 * (turn_of(run.kind) > 0))


def serve_twice(index: HostIndex, user: UserId) -> None:
    """Two requests of a chain, at 0 s."""
    serve(index, user, 1, 0.0)
    serve(index, user, 2, 0.0)


def run_of(index: HostIndex, name: int) -> PageRun:
    page = index.find(0, key(name))
    assert page is not None
    return index._evictable.run_of(page)


def test_a_chain_is_in_the_turn_after_the_one_in_which_its_last_pages_came() -> None:
    index = learning(16)
    for turn in range(3):
        serve(index, A, 2 + turn, float(turn))
        assert run_of(index, 1 + turn).turn == turn


def test_a_newcomer_on_a_shared_head_is_in_the_turn_after_the_heads() -> None:
    index = learning(32)
    for turn in range(4):
        serve(index, A, 2 + turn, float(turn))
    index.advance(9.0)
    head = [key(0), key(1)]
    index.touch_chain(0, [*head, key("b")], B)
    publish(index, "b")
    page = index.find(0, key("b"))
    assert page is not None
    # Both pages of the head came in the first turn, and are in the run of the whole chain since.
    assert index._evictable.run_of(page).turn == 4


def test_the_end_of_a_request_leaves_shared_heads_the_kind_that_they_have() -> None:
    index = learning(16)
    serve(index, A, 4, 0.0)
    index.advance(10.0)
    chain = [key(place) for place in range(4)] + [key(100 + place) for place in range(4)]
    index.touch_chain(0, chain, B)
    for place in range(4):
        publish(index, 100 + place)
    before = [run_of(index, name).kind for name in (0, 3, 100, 103)]
    assert len({*before}) == 2
    index.advance(20.0)
    index.end_use(0, chain, B)
    assert [run_of(index, name).kind for name in (0, 3, 100, 103)] == before


def test_pages_that_are_read_keep_their_kind_and_turn() -> None:
    index = learning(16)
    for turn in range(3):
        serve(index, A, 2 + turn, float(turn))
    kind = run_of(index, 0).kind
    pages = [index.find(0, key(place)) for place in range(4)]
    found = [page for page in pages if page is not None]
    index.pin_all(0, found[:2])
    index.pin(found[2])
    index.unpin(found[:3])
    assert [run_of(index, place).kind for place in range(3)] == [kind] * 3
    assert run_of(index, 2).turn == 2


def test_a_chain_that_has_left_knows_its_turn_when_it_comes_back() -> None:
    index = learning(4)
    serve(index, A, 2, 0.0)
    serve(index, A, 3, 100.0)
    serve(index, B, 4, 200.0, first=100)
    assert index.find(0, key(0)) is None
    serve(index, A, 3, 300.0)
    assert run_of(index, 2).turn == 2


def test_hints_go_before_what_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    later_turns_are_worth_more(monkeypatch)
    index = learning(6)
    serve_twice(index, A)
    serve(index, B, 2, 1.0, first=100)
    serve(index, UserId(3), 2, 2.0, first=200)
    index.retain(A, Over())
    index.retain(B, Kept(50.0))
    left = []
    for _ in range(5):
        assert index.allocate(0) is not None
        left.append([name for name in NAMES if index.find(0, key(name)) is not None])
    assert left == [
        [0, 100, 101, 200, 201],
        [100, 101, 200, 201],
        [100, 101, 200],
        [100, 101],
        [100],
    ]


def sessions(seed: int, num_requests: int) -> list[TraceRequest]:
    """Few sessions have a second turn; those that do have four more, 10 to 70 s apart."""
    draw = random.Random(seed)
    coming: list[tuple[float, int, int, tuple[int, ...]]] = []
    requests: list[TraceRequest] = []
    num_blocks = 0
    for number in range(num_requests):
        now_s = float(number)
        session, turn, chain = number, 0, ()
        if coming and coming[0][0] <= now_s:
            _, session, turn, chain = coming.pop(0)
        chain = (*chain, *range(num_blocks, num_blocks + 4))
        num_blocks += 4
        if (turn == 0 and draw.random() < 0.15) or 0 < turn < 5:
            coming.append((now_s + draw.uniform(10.0, 70.0), session, turn + 1, chain))
            coming.sort()
        requests.append(
            TraceRequest(
                blocks=chain,
                partial_block=None,
                num_tokens=512 * len(chain),
                num_answer_tokens=1,
                arrival_s=now_s,
                end_s=now_s,
                session=session,
                next_s=None,
            )
        )
    return requests


def found(policy: EvictionPolicy) -> int:
    tier = HostTier(120, policy)
    num_found = 0
    for request in sessions(3, 3000):
        num_found += tier.begin(request, request.arrival_s)
        tier.end(request, None, request.arrival_s)
    tier._core.check()
    return num_found


def test_sessions_that_go_on_are_kept_for_longer_than_under_lru() -> None:
    assert found(EvictionPolicy.REUSE) > 1.05 * found(EvictionPolicy.LRU)


def any_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds are worth anything, and something else each minute."""

    def worth_s(self: ReuseChances, kind: int) -> float:
        return (7 * kind + int(self._now_s) // 60) % 5 * 40.0

    def begin_request(self: ReuseChances, now_s: float) -> bool:
        former_s, self._now_s = self._now_s, now_s
        return int(former_s) // 60 != int(now_s) // 60

    monkeypatch.setattr(ReuseChances, "worth_s", worth_s)
    monkeypatch.setattr(ReuseChances, "begin_request", begin_request)
    monkeypatch.setattr(ReuseChances, "most_s", 160.0)


def num_orphans(seed: int) -> int:
    """How often a page was without one that it goes on from, while chains part and go on."""
    draw = random.Random(seed)
    index = learning(40)
    chains: dict[UserId, list[PageKey]] = {}
    now_s, num_keys, num_found = 0.0, 0, 0
    for number in range(150):
        now_s += draw.uniform(1.0, 30.0)
        user, chain = UserId(number + 1), []
        if chains and draw.random() < 0.7:
            user, chain = draw.choice([*chains.items()][-6:])
            if draw.random() < 0.5:
                user, chain = UserId(number + 1), chain[: draw.randrange(len(chain) + 1)]
        num_new = draw.randrange(1, 4)
        chain = [*chain, *(key(num_keys + place) for place in range(num_new))][:20]
        num_keys += num_new
        serve_keys(index, user, chain, now_s)
        chains[user] = chain
        for each in chains.values():
            is_there = [index.find(0, page_key) is not None for page_key in each]
            num_found += is_there != sorted(is_there, reverse=True)
    return num_found


def heads_go_by_their_own_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """What several have used is worth what its last use has made of it."""

    def worth_s(self: PageReuse, run: PageRun) -> float:
        return self._chances.worth_s(run.kind)

    monkeypatch.setattr(PageReuse, "worth_s", worth_s)


def test_no_page_goes_before_those_that_go_on_from_it_whatever_was_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    any_advice(monkeypatch)
    assert sum(map(num_orphans, range(4))) == 0


def test_a_head_that_goes_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    any_advice(monkeypatch)
    heads_go_by_their_own_worth(monkeypatch)
    assert sum(map(num_orphans, range(4))) > 0


def test_other_policies_heed_nothing_that_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    later_turns_are_worth_more(monkeypatch)
    is_kept = {}
    for policy in (EvictionPolicy.LRU, EvictionPolicy.FIFO, EvictionPolicy.REUSE):
        index = HostIndex(make_geometry(1, (4,)), eviction=policy)
        serve_twice(index, A)
        serve(index, B, 2, 1.0, first=100)
        assert index.allocate(0) is not None
        is_kept[policy.value] = index.find(0, key(1)) is not None
    assert is_kept == {"lru": False, "fifo": False, "reuse": True}


def test_a_review_moves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    index = learning(40)
    serve_twice(index, A)
    for number in range(8):
        serve(index, UserId(number + 2), 4, float(number), first=10 + 4 * number)
    entries = [run.entry for run in index._evictable._runs if run is not None]
    assert index._evictable.oldest(0, 50.0, 1) == [index.find(0, key(1))]

    later_turns_are_worth_more(monkeypatch)
    index._evictable.note_review()
    assert [run.entry for run in index._evictable._runs if run is not None] == entries
    assert index._evictable.oldest(0, 50.0, 1) == [index.find(0, key(13))]
