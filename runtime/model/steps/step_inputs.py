"""What a step needs on the device.

Legend: T tokens of the step, R sampled rows, B rows of one token, S rows of several, X slots or
tiles, Y tiles.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from raydix.kernels.attention.rows import AttentionRows, DecodeRows
from raydix.kernels.kv_cache.rotation import RopeTables
from raydix.kernels.sampling.columns import SamplingColumns, as_sampling_columns
from raydix.runtime.model.decoder.attention import AttentionBatch, GroupBatch
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_sampling import SamplingRows
from raydix.runtime.model.steps.step_rows import (
    StepRows,
    tile_columns,
    token_columns,
    whole_columns,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchInputs:
    """A batch that is not captured, on the device, and what is sampled after it."""

    token_ids_T: Tensor
    attention: AttentionBatch
    sampled_R: Tensor
    """Index in T of the last token of each of its rows that sample."""
    next_index_R: Tensor
    """The place in the slots' tokens, seen as one dimension, of the token that each row samples."""
    columns: SamplingColumns
    """The sampling columns of the same rows."""


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
        self._ropes = [
            (
                *rotary.tables(positions_X, decoder.dtype),
                rotary.query_scales(positions_X, decoder.dtype),
            )
            for rotary in decoder.rotaries
        ]

    def batch(self, rows: StepRows, sampling: SamplingRows) -> BatchInputs:
        """All that a batch of these rows needs on the device, by one copy.

        `sampling`: the rows that are sampled after it, be they of this batch or of one before.
        """
        tokens = token_columns(rows, self._slots)
        is_decode = rows.num_tokens == 1
        prefill, expanded = self._decoder.divide_rows(rows.attention_rows(~is_decode))
        tiles_X4, extensions_4Y = self._decoder.ops.plan_tiles(prefill)

        [columns] = self._slots.copies.to_device(
            {
                **tokens.by_name,
                "last_tokens_R": rows.last_tokens[rows.sampling],
                "next_index_R": sampling.slots * self._slots.tokens_per_slot + sampling.ends,
                **sampling.columns,
                "tiles_X4": tiles_X4,
                "slots_B": rows.slots[is_decode],
                "tokens_B": rows.last_tokens[is_decode],
                "contexts_B": rows.ends[is_decode],
                **tile_columns(extensions_4Y),
                **whole_columns(rows, ~is_decode),
            }
        )
        singles = DecodeRows(
            rows_B=columns["slots_B"],
            tokens_B=columns["tokens_B"],
            context_tokens_B=columns["contexts_B"],
            max_context_tokens=int(rows.ends[is_decode].max(initial=0)),
        )
        extensions = decode_tiles(
            columns,
            self._decoder.ops.extension_tokens,
            int(extensions_4Y[3].max(initial=0)),
        )
        whole = whole_rows(
            columns, int(rows.num_tokens.max(initial=1)), int(rows.ends.max(initial=0))
        )
        attention_rows = AttentionRows(
            decode=tuple(some for some in (singles, extensions) if len(some.rows_B)),
            tiles_X4=columns["tiles_X4"] if len(tiles_X4) else None,
            expanded=expanded,
            sequences=(singles, whole) if self._decoder.has_states else (),
        )

        return BatchInputs(
            token_ids_T=self._slots.tokens_XL.view(-1)[columns["token_index_T"]],
            attention=self.attention(attention_rows, columns),
            sampled_R=columns["last_tokens_R"],
            next_index_R=columns["next_index_R"],
            columns=as_sampling_columns(columns),
        )

    def attention(self, rows: AttentionRows, columns: Mapping[str, Tensor]) -> AttentionBatch:
        """How these rows attend, and where their keys and values go.

        `columns`: the step's; those of `TokenColumns` are read.
        """
        groups = []
        for pool, table_XN in zip(self._pools, self._slots.tables_XN, strict=True):
            pages_T = table_XN.view(-1)[columns["page_index_T"]]
            cells_T = torch.add(columns["page_offset_T"], pages_T, alpha=self._slots.page_size)
            groups.append(
                GroupBatch(
                    pool=pool,
                    block_tables_RN=table_XN,
                    cells_T=cells_T,
                    page_size=self._slots.page_size,
                )
            )

        ropes = tuple(
            RopeTables(
                cos_XR=cos_XR,
                sin_XR=sin_XR,
                positions_T=columns["positions_T"],
                query_scales_X=scales_X,
            )
            for cos_XR, sin_XR, scales_X in self._ropes
        )
        return AttentionBatch(rows=rows, ropes=ropes, groups=tuple(groups))


def decode_tiles(
    columns: Mapping[str, Tensor], tokens_per_tile: int, max_context_tokens: int
) -> DecodeRows:
    """Rows of the tiles of few tokens among a step's columns: see `TILE_NAMES`."""
    return DecodeRows(
        rows_B=columns["slots_Y"],
        tokens_B=columns["first_tokens_Y"],
        context_tokens_B=columns["contexts_Y"],
        max_context_tokens=max_context_tokens,
        num_tokens_B=None if tokens_per_tile == 1 else columns["num_tokens_Y"],
        tokens_per_tile=tokens_per_tile,
    )


def whole_rows(
    columns: Mapping[str, Tensor], max_tokens: int, max_context_tokens: int
) -> DecodeRows:
    """The rows of several tokens, uncut, among a step's columns: see `SEQUENCE_NAMES`."""
    return DecodeRows(
        rows_B=columns["slots_S"],
        tokens_B=columns["first_tokens_S"],
        context_tokens_B=columns["contexts_S"],
        max_context_tokens=max_context_tokens,
        num_tokens_B=columns["num_tokens_S"],
        tokens_per_tile=max_tokens,
    )
