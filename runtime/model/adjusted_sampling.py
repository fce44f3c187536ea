"""Sampling of rows whose logits change first: by masks before `min_tokens`, biases or penalties.

Such rows are few: they are sampled apart, in blocks of rows, whose copies of the logits are
float32. Penalties are counted from the tokens each time, so that nothing is kept between steps.

Legend: A adjusted rows, B rows of a block, V vocabulary, L tokens of the longest row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raydix.kernels.ops import ModelOps
from raydix.kernels.sampling_columns import SamplingColumns, as_sampling_columns
from raydix.runtime.model.columns import Column, Columns
from raydix.runtime.model.request_slots import RequestSlots
from raydix.runtime.model.slot_sampling import Biases, SamplingRows

BLOCK_ROWS = 32
"""Rows at a time. Sampling them takes about 30 bytes for each token of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """Some of the adjusted rows: their columns on the device, and what the host has to know."""

    rows_B: Tensor
    """Which rows of the step's logits and tokens they are."""
    next_index_B: Tensor
    """Where in the slots' tokens, seen as one dimension, the sampled one goes."""
    slots_B: Tensor
    num_prompt_tokens_B: Tensor
    num_tokens_B: Tensor
    penalties_3B: Tensor
    """float64: repetition, presence, frequency."""
    sampling: SamplingColumns
    masked_rows: Tensor
    """Rows of the block whose token in `masked_ids` may not be sampled yet."""
    masked_ids: Tensor
    biased_rows: Tensor
    """Rows of the block to whose logit of the token in `biased_ids` the bias is added."""
    biased_ids: Tensor
    biases: Tensor
    """float64."""
    max_tokens: int


def sample_adjusted(
    ops: ModelOps, logits_RV: Tensor, rows: SamplingRows, slots: RequestSlots, token_ids_R: Tensor
) -> None:
    """Sample the adjusted rows again, into `token_ids_R` and the slots, without a host wait.

    In vLLM's order: min_tokens, biases, penalties, temperature, min-p, top-k, top-p, noise.
    """
    for block in _blocks(rows, slots, logits_RV.shape[1]):
        logits_BV = logits_RV[block.rows_B].float()
        # A number as the value would make the host wait for the device.
        masked = logits_BV.new_full((), float("-inf"))
        logits_BV.index_put_((block.masked_rows, block.masked_ids), masked)
        # No place has two biases, so none is lost.
        places = block.biased_rows, block.biased_ids
        logits_BV.index_put_(places, logits_BV[places] + block.biases.float())
        logits_BV = _penalise(logits_BV, block, slots.tokens_XL)

        token_ids_B = ops.sample_whole(logits_BV, block.sampling)
        ops.sample_cut(logits_BV, block.sampling, token_ids_B)
        token_ids_R[block.rows_B] = token_ids_B
        slots.keep_sampled(block.next_index_B, token_ids_B)


def _blocks(rows: SamplingRows, slots: RequestSlots, vocab_size: int) -> list[_Block]:
    """All blocks' columns, in one copy to the device."""
    starts = range(0, len(rows.adjusted), BLOCK_ROWS)
    parts = [rows.adjusted[start : start + BLOCK_ROWS] for start in starts]
    columns = [_block_columns(part, rows, slots, vocab_size) for part in parts]
    return [
        _Block(
            rows_B=own["rows_B"],
            next_index_B=own["next_index_B"],
            slots_B=own["slots_B"],
            num_prompt_tokens_B=own["num_prompt_tokens_B"],
            num_tokens_B=own["num_tokens_B"],
            penalties_3B=own["penalties_3B"],
            sampling=as_sampling_columns(own),
            masked_rows=own["masked_rows"],
            masked_ids=own["masked_ids"],
            biased_rows=own["biased_rows"],
            biased_ids=own["biased_ids"],
            biases=own["biases"],
            max_tokens=int(rows.ends[part].max()),
        )
        for part, own in zip(parts, slots.copies.to_device(*columns), strict=True)
    ]


def _block_columns(
    part: Column, rows: SamplingRows, slots: RequestSlots, vocab_size: int
) -> Columns:
    """The tensors of a `_Block`, and those of `SamplingColumns`."""
    chosen, ends = rows.slots[part], rows.ends[part]
    positions = rows.output_positions[part]
    sampling = [slots.sampling.of_slot[slot] for slot in chosen]
    penalties = np.array(
        [(s.repetition_penalty, s.presence_penalty, s.frequency_penalty) for s in sampling]
    )
    # A stop id beyond the vocabulary cannot be sampled anyway.
    masked = [
        (row, token_id)
        for row, (each, position) in enumerate(zip(sampling, positions, strict=True))
        if position < each.min_tokens
        for token_id in each.masked_until_min_tokens
        if 0 <= token_id < vocab_size
    ]
    masked_rows, masked_ids = np.array(masked, dtype=np.int64).reshape(-1, 2).T
    return {
        "rows_B": part,
        "next_index_B": chosen * slots.tokens_per_slot + ends,
        "slots_B": chosen,
        "num_prompt_tokens_B": slots.num_prompt_tokens[chosen],
        "num_tokens_B": ends,
        "penalties_3B": penalties.T,
        "masked_rows": masked_rows,
        "masked_ids": masked_ids,
        **_bias_columns([slots.sampling.biases_of[slot] for slot in chosen], vocab_size),
        **slots.sampling.columns(chosen, positions),
    }


def _bias_columns(biases: Sequence[Biases], vocab_size: int) -> Columns:
    """Row, token and bias of each biased token of some rows."""
    rows = np.repeat(np.arange(len(biases)), [len(token_ids) for token_ids, _ in biases])
    token_ids = np.concatenate([each for each, _ in biases])
    values = np.concatenate([each for _, each in biases])
    # Like a mask, the bias of a token that the model does not have says nothing.
    is_known = (token_ids >= 0) & (token_ids < vocab_size)
    return {
        "biased_rows": rows[is_known],
        "biased_ids": token_ids[is_known],
        "biases": values[is_known],
    }


def _penalise(logits_BV: Tensor, block: _Block, tokens_XL: Tensor) -> Tensor:
    """Apply penalties as vLLM does: repetition to prompt and output, the others to the output."""
    tokens_BL = tokens_XL[block.slots_B, : block.max_tokens].long()
    positions_L = torch.arange(block.max_tokens, device=logits_BV.device)
    is_token_BL = positions_L < block.num_tokens_B[:, None]
    is_output_BL = is_token_BL & (positions_L >= block.num_prompt_tokens_B[:, None])
    counts_BV = torch.zeros_like(logits_BV).scatter_add_(1, tokens_BL, is_token_BL.float())
    repetition_B1, presence_B1, frequency_B1 = (
        each.float()[:, None] for each in block.penalties_3B
    )

    scaled_BV = torch.where(logits_BV > 0, logits_BV / repetition_B1, logits_BV * repetition_B1)
    logits_BV = torch.where(counts_BV > 0, scaled_BV, logits_BV)
    counts_BV.zero_().scatter_add_(1, tokens_BL, is_output_BL.float())
    return logits_BV - frequency_B1 * counts_BV - presence_B1 * (counts_BV > 0)
