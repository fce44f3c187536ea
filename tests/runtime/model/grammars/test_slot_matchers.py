"""Matchers of slots follow what their requests have sampled, and that alone."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.ids import NO_TOKEN, GrammarKey, RequestId, Slot
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.grammar import GrammarChanges
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan
from raydix.runtime.model.grammars.matcher import Matcher, Words
from raydix.runtime.model.grammars.slot_matchers import FREE_S, MAX_TOKEN_S, SlotMatchers

KEY = GrammarKey(b"k")


class Counting:
    """Allows the token whose number is that of the tokens so far, plus 100 for each 7."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.taken = [*token_ids]

    def advance(self, token_id: int) -> None:
        self.taken.append(token_id)

    def fill(self, words_W: Words) -> None:
        words_W[0] = 1 << len(self.taken) + 10 * self.taken.count(7)


class Library:
    def change(self, changes: GrammarChanges) -> None:
        pass

    def matcher(self, key: GrammarKey, token_ids: Sequence[int]) -> Counting:
        return Counting(token_ids)

    def fill(self, matchers: Sequence[Matcher], words_MW: Words) -> None:
        for matcher, words_W in zip(matchers, words_MW, strict=True):
            assert isinstance(matcher, Counting)
            matcher.fill(words_W)


def added(slot: int, output: Sequence[int] = (), key: GrammarKey | None = KEY) -> StepPlan:
    """A plan by which a request comes that has this output."""
    request = AddedRequest(
        slot=Slot(slot),
        request_id=RequestId("r"),
        token_ids=int32_array([5, 6, *output]),
        num_prompt_tokens=2,
        sampling=DeviceSampling(seed=0, grammar=key),
    )
    return StepPlan(step=0, added=(request,))


def allowed(matchers: SlotMatchers, slot: int, position: int) -> int:
    words_MW = np.zeros((1, 1), dtype=np.int32)
    matchers.fill([slot], [position], words_MW)
    return int(words_MW[0, 0]).bit_length() - 1


def sample(matchers: SlotMatchers, slots: list[int], position: int, tokens: list[int]) -> None:
    positions = np.full(len(slots), position)
    matchers.note_sampled(np.array(slots), positions, tokens.__getitem__)


def test_a_mask_waits_for_what_earlier_steps_have_sampled() -> None:
    matchers = SlotMatchers(Library())
    matchers.apply(added(3))
    assert allowed(matchers, 3, 0) == 0
    sample(matchers, [1, 3], 0, [9, 7])
    assert allowed(matchers, 3, 1) == 11


def test_a_request_that_runs_again_begins_behind_its_output() -> None:
    matchers = SlotMatchers(Library())
    matchers.apply(added(3))
    sample(matchers, [3], 0, [7])
    matchers.apply(StepPlan(step=1, removed_slots=int32_array([3])))
    matchers.apply(added(3, [1, 1]))

    assert allowed(matchers, 3, 2) == 2


def test_a_slot_whose_next_request_has_no_grammar_is_left_alone() -> None:
    matchers = SlotMatchers(Library())
    matchers.apply(added(3))
    matchers.apply(StepPlan(step=1, removed_slots=int32_array([3])))
    matchers.apply(added(3, key=None))
    sample(matchers, [3], 5, [1])


def test_behind_a_token_that_is_none_everything_may_come() -> None:
    matchers = SlotMatchers(Library())
    matchers.apply(added(3))
    sample(matchers, [3], 0, [NO_TOKEN])
    words_MW = np.zeros((1, 2), dtype=np.int32)
    matchers.fill([3], [1], words_MW)

    assert words_MW.tolist() == [[-1, -1]]


def test_a_mask_of_another_position_is_an_error() -> None:
    matchers = SlotMatchers(Library())
    matchers.apply(added(3, [1]))

    with pytest.raises(AccountingError, match="output token 0 is wanted behind 1 tokens"):
        allowed(matchers, 3, 0)
    with pytest.raises(AccountingError, match="output token 2 is sampled by a grammar; expected 1"):
        sample(matchers, [3], 2, [1])


@contextlib.contextmanager
def slow_behind(clock: list[float], num_tokens: int) -> Iterator[None]:
    """Meanwhile masks behind so many tokens or more take too long."""
    fill = Counting.fill

    def fill_slowly(self: Counting, words_W: Words) -> None:
        clock[0] += FREE_S + MAX_TOKEN_S if len(self.taken) >= num_tokens else 0.0
        fill(self, words_W)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Counting, "fill", fill_slowly)
        yield


def test_a_slot_whose_masks_take_too_long_is_told_once() -> None:
    clock = [0.0]
    matchers = SlotMatchers(Library(), thread_time=lambda: clock[0])
    matchers.apply(added(3))
    matchers.apply(added(4))
    allowed(matchers, 3, 0)
    assert matchers.take_slow_slots() == []

    with slow_behind(clock, 1):
        sample(matchers, [3], 0, [1])
        allowed(matchers, 3, 1)
        sample(matchers, [3], 1, [1])
        allowed(matchers, 3, 2)
    allowed(matchers, 4, 0)

    assert matchers.take_slow_slots() == [3]
    assert matchers.take_slow_slots() == []


def test_among_many_masks_the_slow_ones_are_told_alone() -> None:
    clock = [0.0]
    matchers = SlotMatchers(Library(), thread_time=lambda: clock[0])
    for slot in range(40):
        matchers.apply(added(slot, [1] if slot == 7 else []))
    words_MW = np.zeros((40, 1), dtype=np.int32)
    with slow_behind(clock, 1):
        matchers.fill(range(40), [int(slot == 7) for slot in range(40)], words_MW)

    assert [int(words).bit_length() - 1 for words in words_MW[:, 0]] == [0] * 7 + [1] + [0] * 32
    assert matchers.take_slow_slots() == [7]


def test_rows_without_a_matcher_stand_beside_others() -> None:
    matchers = SlotMatchers(Library())
    matchers.apply(added(3))
    matchers.apply(added(4))
    sample(matchers, [4], 0, [NO_TOKEN])
    words_MW = np.zeros((3, 2), dtype=np.int32)
    matchers.fill([9, 3, 4], [5, 0, 1], words_MW)

    assert words_MW[0].tolist() == [-2, -1]
    assert words_MW[1, 0] == 1
    assert words_MW[2].tolist() == [-1, -1]
