"""What a step finds in its rows of prompts besides tokens: logprobs, and which are not finite.

A token that a row samples tells whether the numbers behind it are finite. Most rows of a prompt
sample nothing, yet others hit their pages: so their hidden states are looked at. Every token
attends to itself, so that no key or value of its own escapes its last hidden state.

Legend: T tokens of a batch, C hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.staging.pinned_copies import PinnedCopies
from raydix.runtime.model.steps.prompt_logprobs import PromptLogprobTensors, compute_prompt_logprobs
from raydix.runtime.model.steps.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class HiddenSums:
    """The sum of each token's hidden state, float32 [T]: finite if all of it is."""

    rows: StepRows
    sums_T: Tensor

    def not_finite_slots(self) -> list[int]:
        """The slots of prompts with numbers that are not finite. The sums must be on the host."""
        is_finite_T = np.isfinite(self.sums_T.numpy())
        is_finite = np.logical_and.reduceat(is_finite_T, self.rows.first_tokens)
        return self.rows.slots[self.rows.is_prompt & ~is_finite].tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTensors:
    """What a step, whole or in halves, found in its rows of prompts."""

    sums: tuple[HiddenSums, ...]
    logprobs: PromptLogprobTensors | None

    def to_host(self, copies: PinnedCopies) -> "PromptTensors":
        """Enqueue copies to pinned memory; on the cpu there is nothing to do."""
        return PromptTensors(
            sums=tuple(replace(each, sums_T=copies.to_host(each.sums_T)) for each in self.sums),
            logprobs=None if self.logprobs is None else self.logprobs.to_host(copies),
        )

    def not_finite_slots(self) -> Int32Array:
        """Slots of rows of prompts with numbers that are not finite."""
        slots = {slot for each in self.sums for slot in each.not_finite_slots()}
        return int32_array(sorted(slots)) if slots else empty()


def look_at_prompts(
    decoder: Decoder, parts: Sequence[tuple[Tensor, StepRows]], slots: RequestSlots
) -> PromptTensors | None:
    """Score what requests ask for, and sum hidden states; None for a step without prompts.

    `parts`: hidden states [T, C] of the step's tokens, or of its halves, with the rows to which
    they belong; further ones are of padding.
    """
    parts = [(hidden_TC, rows) for hidden_TC, rows in parts if rows.is_prompt.any()]
    if not parts:
        return None
    return PromptTensors(
        sums=tuple(
            HiddenSums(rows, hidden_TC[: rows.num_tokens.sum()].sum(-1, dtype=torch.float32))
            for hidden_TC, rows in parts
        ),
        logprobs=compute_prompt_logprobs(decoder, parts, slots),
    )
