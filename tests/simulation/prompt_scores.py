"""Modelled logprobs of prompts: the hash of the tokens before each token stands for its logprob."""

from dataclasses import replace

import numpy as np

from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.plan import AddedRequest, PromptLogprobs, StepPlan, StepResult


class PromptScores:
    """Owns: of each slot of a rank whose request asks, what of its prompt is still to be scored."""

    def __init__(self) -> None:
        self._added: dict[int, AddedRequest] = {}

    def apply(self, plan: StepPlan) -> None:
        """Requests come and go."""
        for slot in plan.removed_slots.tolist():
            self._added.pop(slot, None)
        for added in plan.added:
            if added.sampling.num_prompt_logprobs is not None:
                self._added[added.slot] = added

    def forget(self) -> None:
        """All slots are empty."""
        self._added.clear()

    def add_to(
        self, result: StepResult, plan: StepPlan, hashes: dict[int, list[int]]
    ) -> StepResult:
        """The result with what the plan's rows score. `hashes`: of the prefixes, by slot."""
        slots, entries = [], []
        columns = (plan.row_slots, plan.row_starts, plan.row_num_tokens)
        for slot, start, count in zip(*(column.tolist() for column in columns), strict=True):
            added = self._added.get(slot)
            if added is None:
                continue
            first = max(start, added.num_scored_tokens)
            last = min(start + count, added.num_prompt_tokens - 1)
            if first < last:
                slots.append(slot)
                entries.append(_entry(hashes[slot], first, last))
        return replace(result, scored_slots=int32_array(slots), prompt_logprobs=tuple(entries))


def expected_bits(hashes: list[int], num_tokens: int) -> list[int]:
    """What a client must be told of a prompt of so many tokens."""
    return _bits(hashes[: num_tokens - 1]).tolist()


def _entry(hashes: list[int], first: int, last: int) -> PromptLogprobs:
    return PromptLogprobs(
        start=first + 1,
        logprob_bits=_bits(hashes[first:last]),
        ranks=int32_array([1] * (last - first)),
        num_top=0,
    )


def _bits(hashes: list[int]) -> Int32Array:
    return int32_array(np.array([value & 0x7FFFFFFF for value in hashes], dtype=np.int32))
