"""A filter is a set, as far as anybody can tell."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raydix.runtime.routing.key_filter import KeyFilter, Words, hashed, words_of

_MAX_KEYS = 40
_batches = st.lists(st.integers(0, 60), max_size=30)


def words(numbers: list[int]) -> Words:
    """The words of some keys, as spread as those of digests are."""
    spread = [number * 0x9E3779B97F4A7C15 % 2**64 ^ (number << 7) for number in numbers]
    return np.array(spread, dtype=np.uint64)


class FilterMachine(RuleBasedStateMachine):
    """A filter beside a set."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = KeyFilter(_MAX_KEYS)
        self.model: set[int] = set()

    @rule(numbers=_batches)
    def add(self, numbers: list[int]) -> None:
        new = set(numbers) - self.model
        room = _MAX_KEYS - len(self.model)
        num_refused = self.filter.num_refused
        self.filter.add(words(numbers))

        assert self.filter.num_refused - num_refused == max(0, len(new) - room)
        if len(new) <= room:
            self.model |= new
        else:
            found = self.filter.has(hashed(words(sorted(new))))
            self.model |= {
                number for number, is_there in zip(sorted(new), found, strict=True) if is_there
            }

    @rule(numbers=_batches)
    def remove(self, numbers: list[int]) -> None:
        self.filter.remove(words(numbers))
        self.model -= set(numbers)

    @rule(numbers=_batches)
    def look_up(self, numbers: list[int]) -> None:
        there = [number in self.model for number in numbers]

        assert self.filter.has(hashed(words(numbers))).tolist() == there

    @invariant()
    def is_counted(self) -> None:
        assert len(self.filter) == len(self.model)
        self.filter.check()


FilterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFilter = FilterMachine.TestCase


def test_keys_whose_buckets_are_full_are_found_too() -> None:
    keys = KeyFilter(100)
    # Small numbers share both of their buckets.
    crowd = np.arange(1, 41, dtype=np.uint64)
    keys.add(crowd)

    assert keys.has(hashed(crowd)).all()
    keys.check()
    keys.remove(crowd[::2])
    assert keys.has(hashed(crowd)).tolist() == [False, True] * 20
    keys.check()


def test_strangers_are_not_taken_for_known_keys() -> None:
    draw = np.random.default_rng(3)
    keys = KeyFilter(100_000)
    keys.add(draw.integers(0, 2**64, 100_000, dtype=np.uint64))

    assert not keys.has(hashed(draw.integers(0, 2**64, 200_000, dtype=np.uint64))).any()
    assert keys.num_bytes < 6 * 100_000


def test_words_are_the_heads_of_keys_of_any_width() -> None:
    chain = bytes(range(64))

    assert words_of(chain).tobytes() == chain[:8] + chain[32:40]
    assert words_of(chain, 16).tobytes() == chain[:8] + chain[16:24] + chain[32:40] + chain[48:56]
