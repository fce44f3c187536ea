"""What a step needs on the device.

Legend: T tokens of the step, R sampled rows, B rows of one token, X slots or tiles, Y tiles.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raydix.kernels.attention_rows import AttentionRows, DecodeRows
from raydix.kernels.rotation import RopeTables
from raydix.kernels.sampling_columns import NUM_COLUMNS, SamplingColumns, as_sampling_columns
from raydix.runtime.model.attention import AttentionBatch, GroupBatch
from raydix.runtime.model.decoder import Decoder
from raydix.runtime.model.request_slots import RequestSlots
from raydix.runtime.model.slot_sampling import SamplingRows
from raydix.runtime.model.step_rows import StepRows, token_columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchInputs:
    """A batch that is not captured, on the device, and what is sampled after it."""

    token_ids_T: Tensor
    attention: AttentionBatch
    sampled_R: Tensor
    """Index in T of the last token of each of its rows that sample."""
    next_index_R: Tensor
    """Of each row that is sampled after it: where in the slots' tokens, seen as one dimension, the
    sampled one goes."""
    columns: SamplingColumns
    """Of the same rows."""


class InputMaker:
    """Turns rows on the host into inputs of the decoder. The pools belong to the caller."""

    def __init__(
        self,
        decoder: Decoder,
        pools: tuple[Tensor, ...],
        slots: RequestSlots,
        device: torch.device,
    ) -> None:
        self._decoder = decoder
        self._pools = pools
        self._slots = slots
        positions_X = torch.arange(slots.max_model_len, device=device)
        self._ropes = [rotary.tables(positions_X, decoder.dtype) for rotary in decoder.rotaries]

    def batch(self, rows: StepRows, sampling: SamplingRows) -> BatchInputs:
        """All that a batch of these rows needs on the device, by one copy.

        `sampling`: the rows that are sampled after it, be they of this batch or of one before.
        """
        tokens = token_columns(rows, self._slots)
        is_decode = rows.num_tokens == 1
        prefill, expanded = self._decoder.divide_rows(rows.attention_rows(~is_decode))
        tiles_X4, extensions_4Y = self._decoder.ops.plan_tiles(prefill)

        columns = self._slots.copies.to_device(
            [
                tokens.token_index_T,
                tokens.page_index_T,
                tokens.page_offset_T,
                tokens.positions_T,
                rows.last_tokens[rows.sampling],
                sampling.slots * self._slots.tokens_per_slot + sampling.ends,
                *sampling.columns,
                tiles_X4.reshape(-1).view(np.int64),
                rows.slots[is_decode],
                rows.last_tokens[is_decode],
                rows.ends[is_decode],
                *extensions_4Y,
            ]
        )
        token_index_T, page_index_T, page_offset_T, positions_T, *others = columns
        sampled_R, next_index_R, *others = others
        sampling_columns, others = others[:NUM_COLUMNS], others[NUM_COLUMNS:]
        tiles, slots_B, tokens_B, contexts_B, *extension_columns = others

        singles = DecodeRows(
            rows_B=slots_B,
            tokens_B=tokens_B,
            context_tokens_B=contexts_B,
            max_context_tokens=int(rows.ends[is_decode].max(initial=0)),
        )
        extensions = decode_tiles(
            extension_columns,
            self._decoder.ops.extension_tokens,
            int(extensions_4Y[3].max(initial=0)),
        )
        attention_rows = AttentionRows(
            decode=tuple(some for some in (singles, extensions) if len(some.rows_B)),
            tiles_X4=tiles.view(torch.int32).view(-1, 4) if len(tiles) else None,
            expanded=expanded,
        )

        return BatchInputs(
            token_ids_T=self._slots.tokens_XL.view(-1)[token_index_T],
            attention=self.attention(attention_rows, positions_T, page_index_T, page_offset_T),
            sampled_R=sampled_R,
            next_index_R=next_index_R,
            columns=as_sampling_columns(sampling_columns),
        )

    def attention(
        self, rows: AttentionRows, positions_T: Tensor, page_index_T: Tensor, page_offset_T: Tensor
    ) -> AttentionBatch:
        """How these rows attend, and where their keys and values go. For the columns see
        `TokenColumns`."""
        groups = []
        for pool, table_XN in zip(self._pools, self._slots.tables_XN, strict=True):
            pages_T = table_XN.view(-1)[page_index_T]
            slot_mapping_T = torch.add(page_offset_T, pages_T, alpha=self._slots.page_size)
            groups.append(
                GroupBatch(pool=pool, block_tables_RN=table_XN, slot_mapping_T=slot_mapping_T)
            )

        ropes = tuple(
            RopeTables(cos_XD=cos_XD, sin_XD=sin_XD, positions_T=positions_T)
            for cos_XD, sin_XD in self._ropes
        )
        return AttentionBatch(rows=rows, ropes=ropes, groups=tuple(groups))


def decode_tiles(
    columns_4Y: list[Tensor], tokens_per_tile: int, max_context_tokens: int
) -> DecodeRows:
    """Columns in the order of `ModelOps.plan_tiles`."""
    rows_Y, first_tokens_Y, counts_Y, contexts_Y = columns_4Y
    return DecodeRows(
        rows_B=rows_Y,
        tokens_B=first_tokens_Y,
        context_tokens_B=contexts_Y,
        max_context_tokens=max_context_tokens,
        num_tokens_B=None if tokens_per_tile == 1 else counts_Y,
        tokens_per_tile=tokens_per_tile,
    )
