"""The matchers of the requests in the slots, each as far as its output goes.

The Scheduler plans ahead: what a step has sampled may be on the device still when the next one is
enqueued. Its token is waited for once the next step's layers are enqueued, so that the mask is
made while they run.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.ids import NO_TOKEN, GrammarKey
from raydix.runtime.messages.plan import AddedRequest, StepPlan
from raydix.runtime.model.grammars.matcher import GrammarLibrary, Matcher, Words

EXAMPLE_GRAMMAR = GrammarKey(b"")
"""What warm-up asks for: every token but the first may come."""
FREE_S = 0.5
MAX_TOKEN_S = 0.002
"""A grammar may take so many seconds of a processor for each token, and `FREE_S` besides: the steps
of all other requests wait for it. A mask takes some microseconds; what a grammar that can be read
in many ways takes grows with the output.
"""
USUAL_MASK_S = 15e-6
"""What a mask takes on a slow host."""
TokenOf = Callable[[int], int]
"""The token that a step has sampled in its row of this index; waits for it."""


class _SlotMatcher:
    """Owns: how far the output of one request has been matched."""

    def __init__(
        self, matcher: Matcher, num_matched: int, thread_time: Callable[[], float]
    ) -> None:
        self._matcher = matcher
        self._num_matched = num_matched
        self._thread_time = thread_time
        self._spare_s = FREE_S
        self._sampled: deque[tuple[TokenOf, int]] = deque()
        """The steps, each with its row, that have sampled the tokens behind those matched."""
        self._is_void = False

    def note(self, position: int, token_of: TokenOf, row: int) -> None:
        """A step samples the token at this output position."""
        expected = self._num_matched + len(self._sampled)
        if position != expected:
            raise AccountingError(
                f"output token {position} is sampled by a grammar; expected {expected}"
            )
        self._sampled.append((token_of, row))

    def advance_to(self, position: int) -> Matcher | None:
        """The matcher behind the tokens before this output position; None if one of them is none.

        It waits for the tokens that steps have sampled.
        """
        token_ids = [token_of(row) for token_of, row in self._sampled]
        self._sampled.clear()
        began_s = self._thread_time()
        for token_id in token_ids:
            # Without a token the request has failed, as the Scheduler will hear.
            self._is_void = self._is_void or token_id == NO_TOKEN
            if not self._is_void:
                self._matcher.advance(token_id)
            self._num_matched += 1
        self._spare_s += MAX_TOKEN_S * len(token_ids) - (self._thread_time() - began_s)
        if position != self._num_matched:
            raise AccountingError(
                f"the mask of output token {position} is wanted behind {self._num_matched} tokens"
            )
        return None if self._is_void else self._matcher

    def is_slow_after(self, mask_s: float) -> bool:
        """Whether its tokens and masks, of which the last took so long, take too long by now."""
        self._spare_s -= mask_s
        return self._spare_s < 0


class SlotMatchers:
    """Owns: the matcher of each slot whose request goes by a grammar."""

    def __init__(
        self, library: GrammarLibrary, thread_time: Callable[[], float] = time.thread_time
    ) -> None:
        """`thread_time`: the seconds that a processor has worked for this thread."""
        self._library = library
        self._thread_time = thread_time
        self._of_slot: dict[int, _SlotMatcher] = {}
        self._slow_slots: set[int] = set()

    def apply(self, plan: StepPlan) -> None:
        """Carry out a plan's removals, grammars and additions."""
        if self._of_slot:
            for slot in plan.removed_slots.tolist():
                self._of_slot.pop(slot, None)
        if plan.grammars is not None:
            self._library.change(plan.grammars)
        for added in plan.added:
            key = added.sampling.grammar
            if key is not None and key != EXAMPLE_GRAMMAR:
                self._of_slot[added.slot] = self._begin(added, key)

    def _begin(self, added: AddedRequest, key: GrammarKey) -> _SlotMatcher:
        """A matcher behind the output that is known: the request may have run before."""
        output = added.token_ids[added.num_prompt_tokens :].tolist()
        matcher = self._library.matcher(key, output)
        return _SlotMatcher(matcher, len(output), self._thread_time)

    def note_sampled(
        self, slots: NDArray[np.int64], positions: NDArray[np.int64], token_of: TokenOf
    ) -> None:
        """A step samples tokens at these output positions, one for each slot."""
        if not self._of_slot:
            return
        rows = zip(slots.tolist(), positions.tolist(), strict=True)
        for row, (slot, position) in enumerate(rows):
            if (matcher := self._of_slot.get(slot)) is not None:
                matcher.note(position, token_of, row)

    def fill(self, slots: Sequence[int], positions: Sequence[int], words_MW: Words) -> None:
        """Set in each row the bits of the tokens that may stand at an output position of a slot."""
        rows: list[int] = []
        asked: list[_SlotMatcher] = []
        ready: list[Matcher] = []
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            owner = self._of_slot.get(slot)
            matcher = None if owner is None else owner.advance_to(position)
            if owner is not None and matcher is not None:
                rows.append(row)
                asked.append(owner)
                ready.append(matcher)
                continue
            words_MW[row] = -1
            if owner is None:
                # Before there are clients no grammar is there.
                words_MW[row, 0] = np.int32(-2)

        if len(rows) == len(words_MW):
            spent_s = self._fill_all(ready, words_MW)
        else:
            words_RW = np.empty((len(rows), words_MW.shape[1]), dtype=np.int32)
            spent_s = self._fill_all(ready, words_RW)
            words_MW[rows] = words_RW
        for row, owner, mask_s in zip(rows, asked, spent_s, strict=True):
            if owner.is_slow_after(mask_s):
                self._slow_slots.add(slots[row])

    def _fill_all(self, matchers: list[Matcher], words_MW: Words) -> list[float]:
        """Fill a row for each, and return the seconds that each has taken."""
        began_s = self._thread_time()
        self._library.fill(matchers, words_MW)
        all_s = self._thread_time() - began_s
        if len(matchers) < 2 or all_s <= MAX_TOKEN_S + USUAL_MASK_S * len(matchers):
            return [all_s / len(matchers) for _ in matchers]

        # Somebody may be slow, and each by itself shows who.
        spent_s = []
        for row, matcher in enumerate(matchers):
            began_s = self._thread_time()
            self._library.fill([matcher], words_MW[row : row + 1])
            spent_s.append(self._thread_time() - began_s)
        return spent_s

    def take_slow_slots(self) -> list[int]:
        """The slots whose masks have taken too long since this was last asked."""
        slots, self._slow_slots = sorted(self._slow_slots), set()
        return slots
