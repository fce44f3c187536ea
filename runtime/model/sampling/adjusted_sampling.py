"""Sampling of rows whose logits are changed by rules first.

Such rows are few: they are sampled apart, in blocks of rows, whose copies of the logits are
float32.

Legend: A adjusted rows, B rows of a block, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from raydix.kernels.ops import ModelOps
from raydix.kernels.sampling.columns import as_sampling_columns
from raydix.runtime.model.logit_rules.rule import Block, BlockTokens, LogitRule
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_sampling import SamplingRows
from raydix.runtime.model.staging.columns import Column, Columns

BLOCK_ROWS = 32
"""Rows at a time. Sampling them takes about 30 bytes for each token of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostBlock:
    """Some of the adjusted rows: what goes to the device, and what the host has to know."""

    columns: Columns
    """The columns of `SamplingColumns` and of `BlockTokens`; `rows_B`, which rows of the step they
    are; and `next_index_B`, where in the slots' tokens, seen as one dimension, the sampled ones go.
    """
    rules: Sequence[tuple[LogitRule[Any], Columns]]
    """The rules that change logits of the block, in order."""
    max_tokens: int
    has_cuts: bool


def sample_adjusted(
    ops: ModelOps, logits_RV: Tensor, rows: SamplingRows, slots: RequestSlots, token_ids_R: Tensor
) -> None:
    """Sample the adjusted rows again, into `token_ids_R` and the slots, without a host wait."""
    starts = range(0, len(rows.adjusted), BLOCK_ROWS)
    parts = [rows.adjusted[start : start + BLOCK_ROWS] for start in starts]
    blocks = [_host_block(part, rows, slots, logits_RV.shape[1]) for part in parts]
    # All blocks and rules in one copy.
    tables = [[block.columns, *(columns for _, columns in block.rules)] for block in blocks]
    arrived = iter(slots.copies.to_device(*(table for own in tables for table in own)))

    for block in blocks:
        own = next(arrived)
        logits_BV = logits_RV[own["rows_B"]].float()
        tokens = _tokens(own, block.max_tokens, slots)
        for rule, _ in block.rules:
            logits_BV = rule.apply(logits_BV, next(arrived), tokens)

        columns = as_sampling_columns(own)
        token_ids_B = ops.sample_whole(logits_BV, columns)
        if block.has_cuts:
            ops.sample_cut(logits_BV, columns, token_ids_B)
        token_ids_R[own["rows_B"]] = token_ids_B
        slots.keep_sampled(own["next_index_B"], token_ids_B)


def _host_block(
    part: Column, rows: SamplingRows, slots: RequestSlots, vocab_size: int
) -> _HostBlock:
    """A block of some of the step's rows."""
    chosen, ends, positions = rows.slots[part], rows.ends[part], rows.output_positions[part]
    rules = []
    for rule, asked in slots.sampling.asked(chosen, positions):
        block = Block(
            num_rows=len(part),
            vocab_size=vocab_size,
            slots=chosen,
            positions=positions,
            asked=asked,
        )
        columns = rule.columns(block)
        if columns is not None:
            rules.append((rule, columns))

    return _HostBlock(
        columns={
            "rows_B": part,
            "next_index_B": chosen * slots.tokens_per_slot + ends,
            "slots_B": chosen,
            "num_prompt_tokens_B": slots.num_prompt_tokens[chosen],
            "num_tokens_B": ends,
            **slots.sampling.columns(chosen, positions),
        },
        rules=rules,
        max_tokens=int(ends.max()),
        has_cuts=slots.sampling.cuts_any(chosen),
    )


def _tokens(columns: Mapping[str, Tensor], max_tokens: int, slots: RequestSlots) -> BlockTokens:
    return BlockTokens(
        tokens_XL=slots.tokens_XL,
        slots_B=columns["slots_B"],
        num_prompt_tokens_B=columns["num_prompt_tokens_B"],
        num_tokens_B=columns["num_tokens_B"],
        max_tokens=max_tokens,
    )
