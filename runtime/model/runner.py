"""Carries out the rows of numbered plans: gathers a step's tokens, runs the decoder, samples, keeps the tokens.

Sampled tokens are written to the slot's tokens on the device, so the next plan may use one that the Scheduler has not
seen yet. Lengths are known on the host; nothing here waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raydix.errors import AccountingError
from raydix.kernels.reference import AttentionRows, DecodeRows, RopeTables
from raydix.runtime.messages.arrays import empty, int32_array
from raydix.runtime.messages.plan import StepPlan, StepResult
from raydix.runtime.model.attention import AttentionBatch, GroupBatch
from raydix.runtime.model.captured_steps import CapturedOutput, CapturedSteps
from raydix.runtime.model.columns import Column, split_columns
from raydix.runtime.model.decoder import Decoder
from raydix.runtime.model.logprobs import LogprobTensors, compute_logprobs
from raydix.runtime.model.request_slots import RequestSlots
from raydix.runtime.model.sampling import SamplingRows, sample
from raydix.runtime.model.step_rows import (
    StepRows,
    choose_shape,
    padding_columns,
    padding_row,
    read_rows,
    step_columns,
    token_columns,
)
from raydix.runtime.model.step_shapes import StepShape, decode_shapes, extension_shapes

WaitLayer = Callable[[int, int], None]
"""Called with (transfer id, layer) before a layer uses KV that this load brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a step sampled, on the host; on cuda in pinned memory, valid once `ready` has passed."""

    token_ids: Tensor
    """int32, one entry per sampling row, in row order."""
    logprobs: LogprobTensors | None
    ready: torch.cuda.Event | None
    """Recorded after the step's last work; None on cpu."""

    def to_result(self, rank: int, step: int, compute_s: float) -> StepResult:
        """Wait for the step and make its message."""
        if self.ready is not None:
            self.ready.synchronize()
        return StepResult(
            rank=rank,
            step=step,
            token_ids=int32_array(self.token_ids.numpy()) if len(self.token_ids) else empty(),
            logprobs=self.logprobs.to_messages() if self.logprobs is not None else (),
            compute_s=compute_s,
        )


class ModelRunner:
    """Runs plans on one device, in order. Owns: the request slots. The pools belong to the caller.

    `pools`: one [pages + 1, layers, kv heads, 2, page size, head dim] tensor per KV group, zeroed; page 0 is padding.
    """

    def __init__(
        self,
        decoder: Decoder,
        pools: tuple[Tensor, ...],
        *,
        page_size: int,
        max_slots: int,
        max_model_len: int,
        device: torch.device,
    ) -> None:
        self._decoder = decoder
        self._pools = pools
        self._device = device
        self._rope_XD = decoder.rotary.tables(torch.arange(max_model_len, device=device), decoder.dtype)
        self._captured: CapturedSteps | None = None
        self.slots = RequestSlots(
            num_groups=len(pools),
            page_size=page_size,
            max_slots=max_slots,
            max_model_len=max_model_len,
            device=device,
        )

    @torch.inference_mode()
    def warm_up(self, max_prefill_tokens: int) -> None:
        """Run steps of all kinds up to this size, over the padding page, so that every kernel is compiled."""
        longest = min(max_prefill_tokens, self.slots.max_model_len)
        sizes = {size - less for size in _powers_of_two(16, longest) for less in (0, 1)} | {longest}
        for num_tokens in sorted(sizes):
            self._run_padding(num_tokens, 0)
        for context in _powers_of_two(1, self.slots.max_model_len):
            for num_tokens in {1, min(16, context)}:
                self._run_padding(num_tokens, context - num_tokens)

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture small steps of all sizes, if the operations allow it. Call once, before the first plan."""
        if self._decoder.ops.is_capturable:
            self._captured = CapturedSteps(self._run_columns, self._padding, self.captured_shapes(), self._device)

    def captured_shapes(self) -> tuple[StepShape, ...]:
        """Shapes of the steps that are captured; a step takes the first that holds it."""
        extensions = extension_shapes(self.slots.max_model_len, self._decoder.ops.extension_tokens)
        return (*decode_shapes(self.slots.max_slots), *extensions)

    def apply(self, plan: StepPlan) -> None:
        """Carry out the plan's removals, additions and block-table changes.

        Raises AccountingError if one is impossible.
        """
        self.slots.remove(plan.removed_slots)
        for request in plan.added:
            self.slots.add(request)
        for changes in plan.tables:
            self.slots.change_tables(changes)

    @torch.inference_mode()
    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> StepOutput:
        """Run the plan's rows, after `apply`. On cuda the work is only enqueued, on the current stream."""
        rows = read_rows(plan, self.slots)
        if not len(rows.slots):
            return self._output(torch.empty(0, dtype=torch.int32), None)
        on_layer = _layer_waiter(plan, wait_layer)
        if self._captured is not None and (shape := choose_shape(rows, self._captured.shapes)) is not None:
            if on_layer is not None:
                # A load's events are the plan's own, so no graph can hold them: all of it has to arrive first.
                on_layer(self._decoder.spec.num_layers - 1)
            return self._replay(self._captured, rows, shape)
        token_ids_T, batch, sampled_T = self._batch(rows)
        hidden_TC = self._decoder(token_ids_T, batch, on_layer)
        if not len(rows.sampling):
            return self._output(torch.empty(0, dtype=torch.int32), None)
        return self._sample(self._decoder.logits(hidden_TC[sampled_T]), rows)

    def check(self) -> None:
        """Raise AccountingError if a block table names a page that its pool lacks. Waits for the device."""
        for group, (table_XN, pool) in enumerate(zip(self.slots.tables_XN, self._pools, strict=True)):
            lowest, highest = (int(bound) for bound in table_XN.aminmax())
            if lowest < 0 or highest >= pool.shape[0]:
                raise AccountingError(
                    f"Block tables of group {group} name pages {lowest} to {highest}; its pool has {pool.shape[0]}."
                )

    def _batch(self, rows: StepRows) -> tuple[Tensor, AttentionBatch, Tensor]:
        """Return token_ids_T, the attention batch, and the index in T of each sampled row's last token."""
        tokens = token_columns(rows, self.slots)
        is_decode = rows.num_tokens == 1
        prefill = rows.prefill_rows()
        tiles_X4, extensions_4Y = self._decoder.ops.plan_tiles(prefill)
        columns = self.slots.copies.to_device(
            [
                tokens.token_index_T,
                tokens.page_index_T,
                tokens.page_offset_T,
                tokens.positions_T,
                rows.last_tokens[rows.sampling],
                tiles_X4.reshape(-1).view(np.int64),
                rows.slots[is_decode],
                rows.last_tokens[is_decode],
                rows.ends[is_decode],
                *extensions_4Y,
            ]
        )
        token_index_T, page_index_T, page_offset_T, positions_T, sampled_T, tiles, *decode_columns = columns
        slots_B, tokens_B, contexts_B, *extension_columns = decode_columns
        singles = DecodeRows(
            rows_B=slots_B,
            tokens_B=tokens_B,
            context_tokens_B=contexts_B,
            max_context_tokens=int(rows.ends[is_decode].max(initial=0)),
        )
        extensions = _tiles(extension_columns, self._decoder.ops.extension_tokens, int(extensions_4Y[3].max(initial=0)))
        attention_rows = AttentionRows(
            prefill=prefill,
            decode=tuple(some for some in (singles, extensions) if len(some.rows_B)),
            tiles_X4=tiles.view(torch.int32).view(-1, 4),
        )
        batch = self._attention_batch(attention_rows, positions_T, page_index_T, page_offset_T)
        return self.slots.tokens_XL.view(-1)[token_index_T], batch, sampled_T

    def _attention_batch(
        self, rows: AttentionRows, positions_T: Tensor, page_index_T: Tensor, page_offset_T: Tensor
    ) -> AttentionBatch:
        groups = []
        for pool_PLH2SD, table_XN in zip(self._pools, self.slots.tables_XN, strict=True):
            pages_T = table_XN.view(-1)[page_index_T]
            slot_mapping_T = torch.add(page_offset_T, pages_T, alpha=self.slots.page_size)
            groups.append(GroupBatch(pool_PLH2SD=pool_PLH2SD, block_tables_RN=table_XN, slot_mapping_T=slot_mapping_T))
        cos_XD, sin_XD = self._rope_XD
        rope = RopeTables(cos_XD=cos_XD, sin_XD=sin_XD, positions_T=positions_T)
        return AttentionBatch(rows=rows, rope=rope, groups=tuple(groups))

    def _replay(self, captured: CapturedSteps, rows: StepRows, shape: StepShape) -> StepOutput:
        """A captured step. Its tokens are the most likely ones; rows that want others are sampled again."""
        num_rows = len(rows.slots)
        output = captured.replay(step_columns(rows, self.slots, shape), shape)
        if self.slots.takes_likeliest[rows.slots].all():
            return self._output(output.token_ids_R[:num_rows], None)
        return self._sample(output.logits_RV[:num_rows], rows)

    def _run_columns(self, packed: Tensor, shape: StepShape) -> CapturedOutput:
        """The step that `step_columns` describes. Reads nothing from the host but the shape."""
        columns = split_columns(packed, shape.lengths)
        token_index_T, page_index_T, page_offset_T, positions_T, *tile_columns, last_tokens_R, next_index_R = columns
        tiles = _tiles(tile_columns, shape.tokens_per_tile, self.slots.max_model_len)
        attention_rows = AttentionRows(prefill=(), decode=(tiles,))
        batch = self._attention_batch(attention_rows, positions_T, page_index_T, page_offset_T)
        tokens = self.slots.tokens_XL.view(-1)
        hidden_TC = self._decoder(tokens[token_index_T], batch)
        logits_RV = self._decoder.logits(hidden_TC if shape.is_decode else hidden_TC[last_tokens_R])
        token_ids_R = self._decoder.ops.most_likely(logits_RV)
        tokens.scatter_(0, next_index_R, token_ids_R)
        return CapturedOutput(logits_RV=logits_RV, token_ids_R=token_ids_R)

    def _padding(self, shape: StepShape) -> Column:
        return padding_columns(self.slots, shape)

    def _sample(self, logits_RV: Tensor, rows: StepRows) -> StepOutput:
        chosen = rows.sampling
        slots = rows.slots[chosen]
        sampling = [self.slots.sampling[slot] for slot in slots]
        slots_R, ends_R = self.slots.copies.to_device([slots, rows.ends[chosen]])
        token_ids_R = sample(
            logits_RV,
            SamplingRows(
                sampling=sampling,
                output_positions=rows.output_positions[chosen],
                num_prompt_tokens=self.slots.num_prompt_tokens[slots],
                token_rows_R=slots_R,
                tokens_XL=self.slots.tokens_XL,
            ),
        ).to(torch.int32)
        self.slots.tokens_XL[slots_R, ends_R] = token_ids_R
        return self._output(
            token_ids_R, compute_logprobs(logits_RV, token_ids_R, [s.num_logprobs for s in sampling], self.slots.copies)
        )

    def _output(self, token_ids_R: Tensor, logprobs: LogprobTensors | None) -> StepOutput:
        token_ids = self.slots.copies.to_host(token_ids_R)
        on_host = None if logprobs is None else logprobs.to_host(self.slots.copies)
        ready = torch.cuda.Event() if self._device.type == "cuda" else None
        if ready is not None:
            ready.record()
        return StepOutput(token_ids=token_ids, logprobs=on_host, ready=ready)

    def _run_padding(self, num_tokens: int, start: int) -> None:
        token_ids_T, batch, sampled_T = self._batch(padding_row(num_tokens, start, self.slots))
        self._decoder.logits(self._decoder(token_ids_T, batch)[sampled_T])


def _tiles(columns_4Y: list[Tensor], tokens_per_tile: int, max_context_tokens: int) -> DecodeRows:
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


def _powers_of_two(start: int, stop: int) -> list[int]:
    return [1 << bit for bit in range(start.bit_length() - 1, stop.bit_length()) if 1 << bit <= stop]


def _layer_waiter(plan: StepPlan, wait_layer: WaitLayer) -> Callable[[int], None] | None:
    transfer_ids = sorted({int(transfer_id) for transfer_id in plan.row_loads if transfer_id >= 0})
    if not transfer_ids:
        return None

    def wait(layer: int) -> None:
        for transfer_id in transfer_ids:
            wait_layer(transfer_id, layer)

    return wait
