"""Log-probabilities of prompt tokens, each from the logits of the token before it.

A token is scored when its logits tell the logprob of the token that follows it. The logits are made
in blocks of rows, each of which is gone before the next: a prompt's would take gigabytes.

Legend: S scored tokens of a step, T tokens of a batch, V vocabulary, K the most likely ones, C
hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.plan import PromptLogprobs
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.sampling.logprobs import logprobs_of
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_memory import run_offsets
from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.staging.pinned_copies import PinnedCopies
from raydix.runtime.model.steps.step_rows import StepRows

BLOCK_ROWS = 64
"""Tokens at a time. Scoring them takes about 14 bytes for each token of the vocabulary."""
_NONE: Column = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    """Which tokens of a batch are scored, in order of its rows."""

    tokens_S: Column
    """Index in T."""
    slots_S: Column
    positions_S: Column

    def __len__(self) -> int:
        return len(self.tokens_S)


SCORES_NOTHING = ScoredTokens(tokens_S=_NONE, slots_S=_NONE, positions_S=_NONE)


def scored_tokens(rows: StepRows, slots: RequestSlots) -> ScoredTokens:
    """The tokens whose requests ask for the logprobs of their prompts, and do not know them.

    The last token of a prompt is not among them: what follows it is sampled.
    """
    is_asked = slots.sampling.has_prompt_logprobs[rows.slots]
    if not is_asked.any():
        return SCORES_NOTHING

    first = np.maximum(rows.starts, slots.num_scored_tokens[rows.slots])
    last = np.minimum(rows.ends, slots.num_prompt_tokens[rows.slots] - 1)
    counts = np.where(is_asked, np.maximum(last - first, 0), 0)
    offsets = run_offsets(counts)
    return ScoredTokens(
        tokens_S=np.repeat(rows.first_tokens + first - rows.starts, counts) + offsets,
        slots_S=np.repeat(rows.slots, counts),
        positions_S=np.repeat(first, counts) + offsets,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobTensors:
    """What a step found of prompts; rows of one slot are adjacent or in order of position."""

    slots_S: Column
    positions_S: Column
    num_top: Sequence[int]
    """The number of likeliest tokens that each slot asks for, in order of the slots."""
    logprobs_S: Tensor
    ranks_S: Tensor
    top_ids_SK: Tensor
    top_logprobs_SK: Tensor

    def to_host(self, copies: PinnedCopies) -> "PromptLogprobTensors":
        """Enqueue copies to pinned memory; on the cpu there is nothing to do."""
        return replace(
            self,
            logprobs_S=copies.to_host(self.logprobs_S),
            ranks_S=copies.to_host(self.ranks_S),
            top_ids_SK=copies.to_host(self.top_ids_SK),
            top_logprobs_SK=copies.to_host(self.top_logprobs_SK),
        )

    def to_messages(self) -> tuple[Int32Array, tuple[PromptLogprobs, ...]]:
        """Slots, and an entry for each of them. The tensors must have arrived on the host."""
        slots = np.unique(self.slots_S)
        entries = [
            self._entry(slot, num_top)
            for slot, num_top in zip(slots.tolist(), self.num_top, strict=True)
        ]
        return int32_array(slots), tuple(entries)

    def _entry(self, slot: int, num_top: int) -> PromptLogprobs:
        # A row that two halves of a step have cut has its tokens in both, in order.
        (own,) = np.nonzero(self.slots_S == slot)
        return PromptLogprobs(
            start=int(self.positions_S[own[0]]) + 1,
            logprob_bits=_bits(self.logprobs_S, own),
            ranks=int32_array(self.ranks_S.numpy()[own]),
            num_top=num_top,
            top_ids=int32_array(self.top_ids_SK.numpy()[own, :num_top].reshape(-1)),
            top_logprob_bits=_bits(self.top_logprobs_SK[:, :num_top], own),
        )


def _bits(values: Tensor, rows: Column) -> Int32Array:
    if not values.numel():
        return empty()
    return int32_array(values.numpy()[rows].reshape(-1).view(np.int32))


def compute_prompt_logprobs(
    decoder: Decoder, parts: Sequence[tuple[Tensor, StepRows]], slots: RequestSlots
) -> PromptLogprobTensors | None:
    """Score what the requests of a step ask for; None if that is nothing.

    `parts`: hidden states [T, C] of the step's tokens, or of its halves, with the rows to which
    they belong.
    """
    scored = [(hidden_TC, scored_tokens(rows, slots)) for hidden_TC, rows in parts]
    scored = [(hidden_TC, own) for hidden_TC, own in scored if len(own)]
    if not scored:
        return None

    slots_S = np.concatenate([own.slots_S for _, own in scored])
    positions_S = np.concatenate([own.positions_S for _, own in scored])
    following, *parts_on_device = slots.copies.to_device(
        {"index_S": slots_S * slots.tokens_per_slot + positions_S + 1},
        *({"tokens_S": own.tokens_S} for _, own in scored),
    )
    token_ids_S = slots.tokens_XL.view(-1)[following["index_S"]].long()

    asked = [slots.sampling.of_slot[slot] for slot in np.unique(slots_S).tolist()]
    num_top = [min(each.num_prompt_logprobs or 0, decoder.spec.vocab_size) for each in asked]
    places = [
        (hidden_TC, tokens_B)
        for (hidden_TC, _), own in zip(scored, parts_on_device, strict=True)
        for tokens_B in own["tokens_S"].split(BLOCK_ROWS)
    ]
    ids = token_ids_S.split([len(tokens_B) for _, tokens_B in places])
    blocks = [
        logprobs_of(decoder.logits(hidden_TC[tokens_B]), token_ids_B, max(num_top))
        for (hidden_TC, tokens_B), token_ids_B in zip(places, ids, strict=True)
    ]
    logprobs_S, ranks_S, top_ids_SK, top_logprobs_SK = (
        torch.cat(columns) for columns in zip(*blocks, strict=True)
    )

    return PromptLogprobTensors(
        slots_S=slots_S,
        positions_S=positions_S,
        num_top=num_top,
        logprobs_S=logprobs_S,
        ranks_S=ranks_S,
        top_ids_SK=top_ids_SK,
        top_logprobs_SK=top_logprobs_SK,
    )
