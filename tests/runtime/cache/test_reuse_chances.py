"""What a tier learns of reuse: which kinds of pages stay longer, and when it is not heeded."""

import random
import sys
from array import array
from collections.abc import Iterable

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.page_key import KEY_BYTES, root_key
from raydix.runtime.cache.radix_node import RadixNode, Segment
from raydix.runtime.cache.radix_tree import Lock, RadixTree
from raydix.runtime.cache.reuse_chances import ReuseChances, kind_of, turn_of, worths
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import int32_array

NUM_BUCKETS = 26
GOING_ON, LAST = kind_of(3, 64, 1), kind_of(0, 64, 1)


def key_of(number: int) -> PageKey:
    return PageKey((number + 1).to_bytes(8, "big") * (KEY_BYTES // 8))


def columns(*rates: float) -> tuple[np.ndarray, np.ndarray]:
    """Per kind and age, what a thousand seconds of waiting show at these rates of reuse."""
    waited_s = np.full((len(rates), NUM_BUCKETS), 1000.0)
    return waited_s * np.array(rates)[:, None], waited_s


def see(chances: ReuseChances, uses: Iterable[tuple[int, float | None]]) -> None:
    """Tell of pages, a kind each, that are used again after some seconds, or gone after ten."""
    now_s = 0.0
    for number, (kind, age_s) in enumerate(uses):
        now_s += 1.0
        chances.begin_request(now_s)
        if age_s is not None:
            chances.used_again(kind, now_s - age_s, 1)
        else:
            chances.dropped(kind, now_s - 10.0, 1)
            chances.gone(key_of(number), kind, now_s - 10.0, 1)
        chances.check()


def drawn(num: int, going_on: int, ending: int, seed: int) -> list[tuple[int, float | None]]:
    """Half of the pages of one kind are used again after 20 s, none of the other."""
    draw = random.Random(seed)
    uses: list[tuple[int, float | None]] = []
    for _ in range(num):
        is_going_on = draw.random() < 0.5
        age_s = draw.uniform(15.0, 25.0) if is_going_on and draw.random() < 0.8 else None
        uses.append((going_on if is_going_on else ending, age_s))
    return uses


def test_nothing_is_worth_keeping_for_longer_before_anything_is_learnt() -> None:
    assert ReuseChances().most_s == 0.0


def test_kinds_tell_turns_lengths_and_first_uses_apart() -> None:
    kinds = {
        kind_of(turn, num_pages, num_hits)
        for turn in range(8)
        for num_pages in (1, 4, 16, 64, 256, 1024, 4096)
        for num_hits in (1, 2)
    }
    assert len(kinds) == 8 * 7 * 2
    assert kind_of(2, 4, 2) == kind_of(2, 5, 9)
    assert kind_of(7, 10**9, 1) == kind_of(99, 10**12, 1) < 128
    assert [turn_of(kind_of(turn, 100, 2)) for turn in (0, 3, 7, 50)] == [0, 3, 7, 7]


def test_kinds_that_are_used_alike_are_worth_the_same() -> None:
    uses, waited_s = columns(0.01, 0.01)
    found = worths(uses, waited_s, np.array([5.0, 3.0]), 40.0)
    assert found.kept_s == pytest.approx([found.lru_s] * 2, abs=1.0)


def test_what_is_used_more_often_stays_longer_in_the_same_room() -> None:
    uses, waited_s = columns(0.02, 0.001)
    # Pages that are used ever less often.
    uses *= 2.0 ** -np.arange(NUM_BUCKETS)[None, :]
    found = worths(uses, waited_s, np.array([1.0, 1.0]), 20.0)
    assert found.of_kind_s[0] > found.of_kind_s[1]
    assert found.kept_s[0] > found.lru_s > found.kept_s[1]


def test_nothing_is_worth_more_before_enough_was_seen() -> None:
    chances = ReuseChances()
    see(chances, drawn(250, GOING_ON, LAST, 1))
    assert not chances.is_heeded
    assert chances.worth_s(GOING_ON) == chances.worth_s(LAST) == 0.0


def test_what_goes_on_is_worth_more_than_what_ends() -> None:
    chances = ReuseChances()
    see(chances, drawn(3000, GOING_ON, LAST, 1))
    assert chances.is_heeded
    assert chances.worth_s(GOING_ON) > chances.worth_s(LAST)


def test_advice_that_loses_against_lru_is_heeded_no_more() -> None:
    chances = ReuseChances()
    see(chances, drawn(2000, GOING_ON, LAST, 1))
    assert chances.is_heeded
    # All at once the other kind goes on, soon after its last use.
    now_s = 2000.0
    for _ in range(600):
        now_s += 1.0
        chances.begin_request(now_s)
        chances.used_again(LAST, now_s - 4.0, 40)
    assert not chances.is_heeded


def test_pages_that_come_back_tell_their_turn_once() -> None:
    chances = ReuseChances()
    chances.begin_request(100.0)
    chances.gone(key_of(1), GOING_ON, 60.0, 5)
    assert chances.come_back(key_of(2)) is None
    assert chances.come_back(key_of(1)) == 3
    assert chances.come_back(key_of(1)) is None


def test_what_it_learns_takes_less_than_a_mebibyte() -> None:
    chances = ReuseChances()
    see(chances, drawn(1000, GOING_ON, LAST, 1))
    num_bytes = 0
    for column in vars(chances).values():
        num_bytes += sys.getsizeof(column)
        if isinstance(column, list):
            num_bytes += sum(map(sys.getsizeof, column))
        if isinstance(column, array):
            assert len(column) * column.itemsize <= sys.getsizeof(column)
    assert num_bytes < 2**20


def test_check_finds_more_uses_than_ends() -> None:
    chances = ReuseChances()
    chances.check()
    chances._uses[3] += 1.0
    with pytest.raises(AccountingError, match="more uses"):
        chances.check()


def serve(tree: RadixTree, tokens: list[int], now_s: float, first_id: int) -> Lock:
    packed = np.array(tokens, dtype="<i4").tobytes()
    lock = tree.lock(found := tree.match(root_key(), packed), found.num_pages, now_s=now_s)
    new = tokens[lock.num_pages :]
    tree.insert(
        lock,
        packed[4 * lock.num_pages :],
        (int32_array([first_id + place for place in range(len(new))]),),
        b"".join(map(key_of, new)),
        segment=Segment.PROMPT,
        now_s=now_s,
    )
    return lock


def test_a_tree_knows_the_turns_of_a_chain_that_has_left_it() -> None:
    tree = RadixTree(page_size=1, eviction=EvictionPolicy.REUSE)
    turns = []
    for turn in range(3):
        lock = serve(tree, list(range(1, 3 + turn)), float(turn), 10 * turn + 1)
        turns.append(lock.turn)
        node: RadixNode | None = lock.node
        assert node is not None
        assert turn_of(node.kind) == turn
        tree.unlock(lock, last_step=0)
        tree.check()
    assert turns == [0, 1, 2]
    tree.evict((100,))
    assert tree.num_nodes == 0
    lock = serve(tree, list(range(1, 6)), 9.0, 50)
    assert lock.turn == 3
