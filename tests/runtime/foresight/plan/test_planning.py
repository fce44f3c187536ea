"""Plans are what production tiers find of a trace, beside the limits of any policy."""

import random
from dataclasses import replace

import pytest

from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import (
    bypassed_min_blocks,
    chains_of,
    infinite_blocks,
    lru_blocks,
    min_blocks,
)
from raydix.runtime.foresight.plan.planning import (
    Plan,
    Question,
    Sizes,
    TierSize,
    make_plan,
)
from raydix.runtime.foresight.plan.quick import HostTier
from raydix.runtime.foresight.traces import TraceRequest

BLOCK = 4


def made_trace(seed: int, num_requests: int) -> list[TraceRequest]:
    """Sessions of chains that grow, behind one block that all have; some have a partial end."""
    draw = random.Random(seed)
    chains: list[list[int]] = []
    names = iter(range(1, 10**6))
    requests = []
    for index in range(num_requests):
        if chains and draw.random() < 0.6:
            chain = draw.choice(chains[-8:])
        else:
            chain = [0]
            chains.append(chain)
        chain += [next(names) for _ in range(draw.randint(1, 5))]
        partial = next(names) if draw.random() < 0.5 else None
        requests.append(
            TraceRequest(
                blocks=tuple(chain),
                partial_block=partial,
                num_tokens=len(chain) * BLOCK + (partial is not None),
                num_answer_tokens=1,
                arrival_s=float(index),
                end_s=index + 0.5,
                session=1 + index,
                next_s=None,
            )
        )
    return requests


def sizes(num_blocks: tuple[int, ...]) -> list[TierSize]:
    return [TierSize(num_bytes=10 * each, num_blocks=each) for each in num_blocks]


def plan_of(seed: int, eviction: EvictionPolicy = EvictionPolicy.LRU, after: float = 0.0) -> Plan:
    question = Question(
        requests=made_trace(seed, 150),
        block_tokens=BLOCK,
        eviction=eviction,
        count_after=after,
    )
    return make_plan(
        question,
        Sizes(l1=sizes((0, 40, 80)), l2=sizes((0, 60, 200)), l3=[*sizes((0,)), None]),
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_policy_finds_more_than_min_and_min_no_more_than_a_cache_without_bounds(
    seed: int,
) -> None:
    for eviction in (EvictionPolicy.LRU, EvictionPolicy.FIFO, EvictionPolicy.LFU):
        found = plan_of(seed, eviction)
        assert len(found.points) == 4
        for point in found.points:
            assert 0 < point.chosen <= point.min + 1e-9
            assert point.min <= found.infinite + 1e-9


def drawn_trace(seed: int) -> list[TraceRequest]:
    """Few short prompts and answers, each of which may go on from any place in an earlier one."""
    draw = random.Random(seed)
    paths: list[tuple[int, ...]] = [()]
    num_blocks = 0
    requests = []
    for number in range(draw.randint(3, 30)):
        former = draw.choice(paths)
        former = former[: draw.randint(0, len(former))]
        num_new, num_answer = draw.randint(0 if former else 1, 5), draw.choice((0, 0, 1, 3))
        blocks = (*former, *range(num_blocks, num_blocks + num_new))
        num_blocks += num_new
        answer = tuple(range(num_blocks, num_blocks + num_answer))
        num_blocks += num_answer
        paths.append(blocks + answer)
        requests.append(
            TraceRequest(
                blocks=blocks,
                partial_block=None,
                num_tokens=BLOCK * len(blocks),
                num_answer_tokens=BLOCK * num_answer,
                answer_blocks=answer,
                arrival_s=float(number),
                end_s=number + 0.5,
                session=number,
                next_s=None,
            )
        )
    return requests


@pytest.mark.parametrize("seed", range(30))
def test_min_is_never_below_lru_in_tiers_of_any_size(seed: int) -> None:
    question = Question(requests=drawn_trace(seed), block_tokens=BLOCK, eviction=EvictionPolicy.LRU)
    small = sizes((1, 2, 3, 5, 7, 9, 12))
    found = make_plan(question, Sizes(l1=small, l2=small, l3=small))

    assert {point.tier for point in found.points} == {"L1", "L2", "L3"}
    for point in found.points:
        assert point.lru <= point.min + 1e-9, point


def test_l2_holds_no_more_blocks_than_it_has_room_for() -> None:
    long = replace(drawn_trace(0)[0], blocks=tuple(range(40)), answer_blocks=())
    for num_blocks in (1, 3, 7, 20):
        tier = HostTier(num_blocks, EvictionPolicy.LRU)
        for number in range(2):
            tier.begin(replace(long, arrival_s=float(number)), float(number))
        assert tier.begin(replace(long, arrival_s=9.0), 9.0) <= num_blocks


def test_both_tiers_find_what_the_model_of_lru_finds() -> None:
    requests = made_trace(1, 150)
    asked = sum(request.num_tokens for request in requests)
    chains = chains_of(requests, with_partial=False)
    for point in plan_of(1).points:
        expected = 100 * BLOCK * sum(lru_blocks(chains, point.num_blocks)) / asked
        assert point.lru == pytest.approx(expected, abs=1.0), point.tier


def test_tiers_add_up_and_none_loses_for_being_larger() -> None:
    found = plan_of(2)
    by_sizes = {(mix.l1_bytes, mix.l2_bytes, mix.l3_bytes): mix for mix in found.mixes}
    assert len(by_sizes) == 18
    for (l1, l2, l3), mix in by_sizes.items():
        assert min(mix.l1, mix.l2, mix.l3) >= 0
        assert (mix.l1 > 0) == (l1 > 0)
        if l3 is None:
            assert mix.total == pytest.approx(found.infinite)
        if l2 == 600:
            assert mix.total >= by_sizes[l1, 0, l3].total


def test_the_next_size_gains_what_the_totals_differ_by() -> None:
    found = plan_of(2)
    choice = next(mix for mix in found.mixes if mix.l1_bytes == 400)
    gains = {gain.tier: gain for gain in found.gains(choice)}
    assert set(gains) == {"L1", "L2"}, "an L3 without a bound has no price per GiB"
    larger = next(mix for mix in found.mixes if mix.l1_bytes == 800)
    assert gains["L1"].points == pytest.approx(larger.total - choice.total)
    assert gains["L1"].points_per_gib == pytest.approx(gains["L1"].points * 2**30 / 400)


def test_requests_that_fill_the_tiers_are_not_counted() -> None:
    requests = made_trace(3, 150)
    found = infinite_blocks(chains_of(requests, with_partial=False))
    counted = slice(75, None)
    asked = sum(request.num_tokens for request in requests[counted])
    expected = 100 * BLOCK * sum(found[counted]) / asked
    assert plan_of(3, after=0.5).infinite == pytest.approx(expected)


def test_min_keeps_what_comes_back_first() -> None:
    chains = [(1,), (2,), (3,), (2,), (1,)]
    assert sum(min_blocks(chains, 2)) == 1
    assert sum(lru_blocks(chains, 2)) == 1
    assert sum(min_blocks([(1,), (2,), (3,), (1,), (1,)], 2)) == 2
    assert sum(lru_blocks([(1,), (2,), (3,), (1,), (1,)], 2)) == 1


def test_min_that_may_refuse_blocks_finds_no_less() -> None:
    assert sum(bypassed_min_blocks([(1,), (2,), (1,)], 1)) == 1
    assert sum(min_blocks([(1,), (2,), (1,)], 1)) == 0
    for seed in range(3):
        chains = chains_of(made_trace(seed, 150), with_partial=True)
        for num_blocks in (20, 60):
            refusing = sum(bypassed_min_blocks(chains, num_blocks))
            assert sum(lru_blocks(chains, num_blocks)) < sum(min_blocks(chains, num_blocks))
            assert sum(min_blocks(chains, num_blocks)) <= refusing


def test_a_prompt_whose_whole_blocks_are_there_still_lacks_its_last_tokens() -> None:
    first, second = (
        TraceRequest(
            blocks=(0, 1),
            partial_block=end,
            num_tokens=2 * BLOCK + 3,
            num_answer_tokens=1,
            arrival_s=float(end),
            end_s=end + 0.5,
            session=1,
            next_s=None,
        )
        for end in (7, 8)
    )
    asked = 2 * (2 * BLOCK + 3)
    for requests, num_hits in (([first, second], 2 * BLOCK), ([first, first], 2 * BLOCK + 3)):
        question = Question(
            requests=requests,
            block_tokens=BLOCK,
            eviction=EvictionPolicy.LRU,
            with_partial=True,
        )
        found = make_plan(question, Sizes(l1=sizes((8,)), l2=sizes((0,)), l3=[None]))
        assert found.infinite == pytest.approx(100 * num_hits / asked)
        assert found.points[0].lru == found.infinite


def test_what_comes_next_is_the_next_size_not_the_largest() -> None:
    question = Question(requests=made_trace(2, 60), block_tokens=BLOCK, eviction=EvictionPolicy.LRU)
    found = make_plan(question, Sizes(l1=sizes((10, 20, 40)), l2=sizes((0,)), l3=sizes((0,))))
    [gain] = found.gains(found.mixes[0])
    assert (gain.from_bytes, gain.to_bytes) == (100, 200)
