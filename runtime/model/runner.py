"""Carries out numbered plans: gathers tokens, runs the decoder, samples, keeps the tokens.

Sampled tokens are written to the slot's tokens on the device, so the next plan may use one that the
Scheduler has not seen yet. Lengths are known on the host; nothing here waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raydix.errors import AccountingError
from raydix.kernels.attention_rows import AttentionRows, DecodeRows
from raydix.kernels.rotation import RopeTables
from raydix.kernels.sampling_columns import NUM_COLUMNS, SamplingColumns, as_sampling_columns
from raydix.moe.sent_rows import SentRows
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.adjusted_sampling import sample_adjusted
from raydix.runtime.model.attention import AttentionBatch, GroupBatch
from raydix.runtime.model.captured_steps import CapturedOutput, CapturedSteps
from raydix.runtime.model.columns import Column, split_columns
from raydix.runtime.model.decoder import Decoder
from raydix.runtime.model.logprobs import LogprobTensors, compute_logprobs
from raydix.runtime.model.request_slots import RequestSlots
from raydix.runtime.model.slot_sampling import SamplingRows
from raydix.runtime.model.step_group import StepGroup, choose_shape, read_lane_sizes
from raydix.runtime.model.step_output import StepOutput
from raydix.runtime.model.step_rows import (
    StepRows,
    idle_row,
    padding_columns,
    padding_row,
    read_rows,
    step_columns,
    token_columns,
)
from raydix.runtime.model.step_shapes import StepShape, decode_shapes, extension_shapes
from raydix.runtime.model.warm_up import ASKING_FOR_ALL, CUTTING, GREEDY, warm_up_rows
from raydix.runtime.tiers.transfers import WaitLayer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StepInputs:
    """A step that is not captured, on the device."""

    token_ids_T: Tensor
    batch: AttentionBatch
    sampled_R: Tensor
    """Index in T of each sampling row's last token."""
    next_index_R: Tensor
    """Where in the slots' tokens, seen as one dimension, the sampled one goes."""
    columns: SamplingColumns


class ModelRunner:
    """Runs plans on one device, in order. Owns: the request slots. The pools belong to the caller.

    `pools`: one zeroed tensor per KV group, as of `make_pools`; page 0 is padding.
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

        positions_X = torch.arange(max_model_len, device=device)
        self._ropes = [rotary.tables(positions_X, decoder.dtype) for rotary in decoder.rotaries]
        self._captured: CapturedSteps | None = None
        self._group = _step_group(decoder)
        self.slots = RequestSlots(
            pool_pages=[pool.shape[0] - 1 for pool in pools],
            page_size=page_size,
            max_slots=max_slots,
            max_model_len=max_model_len,
            device=device,
        )

    @torch.inference_mode()
    def warm_up(self, max_prefill_tokens: int) -> None:
        """Run steps of all kinds up to this size, on padding, so that every kernel is compiled."""
        longest = min(max_prefill_tokens, self.slots.max_model_len)
        for num_tokens, start in warm_up_rows(longest, self.slots.max_model_len):
            self._run_padding(num_tokens, start)

        # The largest batch, with all that rows may ask for at once: the memory that takes must be
        # known.
        for sampling in (CUTTING, ASKING_FOR_ALL):
            self.slots.sampling.put(self.slots.scratch_slot, sampling)
            self._run_padding(longest, self.slots.max_model_len - longest, self.slots.max_slots)
        self.slots.sampling.put(self.slots.scratch_slot, GREEDY)
        if self._decoder.experts is not None:
            # What padding asked for is nobody's load.
            self._decoder.experts.routes.take_loads()

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture small steps of all sizes, if operations and collectives allow it.

        To be called once, before the first plan.
        """
        if self._decoder.is_capturable:
            self._captured = CapturedSteps(
                self._run_columns,
                self._cut_columns,
                padding=self._padding,
                shapes=self.captured_shapes(),
                device=self._device,
            )

    def captured_shapes(self) -> tuple[StepShape, ...]:
        """Shapes of the steps that are captured; a step takes the first that holds it."""
        extensions = extension_shapes(self.slots.max_model_len, self._decoder.ops.extension_tokens)
        return (*decode_shapes(self.slots.max_slots), *extensions)

    def apply(self, plan: StepPlan) -> None:
        """Carry out the plan's removals, additions and block-table changes.

        Raises AccountingError if one is impossible; one of the block tables, before anything has
        changed.
        """
        for changes in plan.tables:
            self.slots.check_tables(changes)
        self.slots.remove(plan.removed_slots)
        for request in plan.added:
            self.slots.add(request)
        for changes in plan.tables:
            self.slots.change_tables(changes)

    @torch.inference_mode()
    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> StepOutput:
        """Run the plan's rows, after `apply`; on cuda, enqueue them on the current stream.

        Without any it takes part in the other lanes' step, if they share experts and one has some.
        """
        rows = read_rows(plan, self.slots)
        sizes = read_lane_sizes(plan, self._group)
        if not any(sizes.tokens):
            return self._nothing()
        on_layer = _layer_waiter(plan, wait_layer)
        sampling = rows.sampling_rows(self.slots.sampling)

        if (
            self._captured is not None
            and (shape := choose_shape(sizes, self._captured.shapes)) is not None
        ):
            if on_layer is not None:
                # A load's events are the plan's own, so no graph can hold them: all of it has to
                # arrive first.
                on_layer(self._decoder.spec.num_layers - 1)
            columns = step_columns(rows, sampling, self.slots, shape)
            return self._replay(self._captured, columns, shape, sampling)

        inputs = self._inputs(rows if len(rows.slots) else idle_row(self.slots), sampling)
        sent = None if self._group is None else self._group.exact(sizes.tokens)
        hidden_TC = self._decoder(inputs.token_ids_T, inputs.batch, on_layer, sent)
        if not len(sampling.slots):
            return self._nothing()
        return self._sample(hidden_TC[inputs.sampled_R], inputs, sampling)

    def check(self) -> None:
        """Raise AccountingError if a block table names a page outside its pool. The host waits."""
        for group, (table_XN, pool) in enumerate(
            zip(self.slots.tables_XN, self._pools, strict=True)
        ):
            lowest, highest = (int(bound) for bound in table_XN.aminmax())
            if lowest < 0 or highest >= pool.shape[0]:
                raise AccountingError(
                    f"Block tables of group {group} name pages {lowest} to {highest}; its pool "
                    f"has {pool.shape[0]}."
                )

    def _inputs(self, rows: StepRows, sampling: SamplingRows) -> _StepInputs:
        """All that the step needs on the device, by one copy."""
        tokens = token_columns(rows, self.slots)
        is_decode = rows.num_tokens == 1
        prefill, expanded = self._decoder.divide_rows(rows.prefill_rows())
        tiles_X4, extensions_4Y = self._decoder.ops.plan_tiles(prefill)

        columns = self.slots.copies.to_device(
            [
                tokens.token_index_T,
                tokens.page_index_T,
                tokens.page_offset_T,
                tokens.positions_T,
                rows.last_tokens[rows.sampling],
                sampling.slots * self.slots.tokens_per_slot + sampling.ends,
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
        extensions = _tiles(
            extension_columns,
            self._decoder.ops.extension_tokens,
            int(extensions_4Y[3].max(initial=0)),
        )
        attention_rows = AttentionRows(
            prefill=prefill,
            expanded=expanded,
            decode=tuple(some for some in (singles, extensions) if len(some.rows_B)),
            tiles_X4=tiles.view(torch.int32).view(-1, 4),
        )

        batch = self._attention_batch(attention_rows, positions_T, page_index_T, page_offset_T)
        return _StepInputs(
            token_ids_T=self.slots.tokens_XL.view(-1)[token_index_T],
            batch=batch,
            sampled_R=sampled_R,
            next_index_R=next_index_R,
            columns=as_sampling_columns(sampling_columns),
        )

    def _attention_batch(
        self, rows: AttentionRows, positions_T: Tensor, page_index_T: Tensor, page_offset_T: Tensor
    ) -> AttentionBatch:
        groups = []
        for pool, table_XN in zip(self._pools, self.slots.tables_XN, strict=True):
            pages_T = table_XN.view(-1)[page_index_T]
            slot_mapping_T = torch.add(page_offset_T, pages_T, alpha=self.slots.page_size)
            groups.append(
                GroupBatch(pool=pool, block_tables_RN=table_XN, slot_mapping_T=slot_mapping_T)
            )

        ropes = tuple(
            RopeTables(cos_XD=cos_XD, sin_XD=sin_XD, positions_T=positions_T)
            for cos_XD, sin_XD in self._ropes
        )
        return AttentionBatch(rows=rows, ropes=ropes, groups=tuple(groups))

    def _replay(
        self, captured: CapturedSteps, columns: Column, shape: StepShape, sampling: SamplingRows
    ) -> StepOutput:
        """A captured step."""
        num_rows = len(sampling.slots)
        output = captured.replay(columns, shape)
        if not num_rows:
            return self._nothing()
        if sampling.has_cuts:
            captured.replay_cut(shape)
        return self._finish(output.logits_RV[:num_rows], output.token_ids_R[:num_rows], sampling)

    def _run_columns(self, packed: Tensor, shape: StepShape) -> CapturedOutput:
        """The step that `step_columns` describes. Reads nothing from the host but the shape."""
        columns = split_columns(packed, shape.lengths)
        token_index_T, page_index_T, page_offset_T, positions_T, *others = columns
        *tile_columns, last_tokens_R, next_index_R = others[:-NUM_COLUMNS]
        tiles = _tiles(tile_columns, shape.tokens_per_tile, self.slots.max_model_len)
        attention_rows = AttentionRows(prefill=(), decode=(tiles,))
        batch = self._attention_batch(attention_rows, positions_T, page_index_T, page_offset_T)
        tokens = self.slots.tokens_XL.view(-1)
        hidden_TC = self._decoder(tokens[token_index_T], batch, sent=self._padded(token_index_T))

        logits_RV = self._decoder.logits(hidden_TC if shape.is_decode else hidden_TC[last_tokens_R])
        sampling = as_sampling_columns(others[-NUM_COLUMNS:])
        token_ids_R = self._decoder.ops.sample_whole(logits_RV, sampling)
        self.slots.keep_sampled(next_index_R, token_ids_R)
        return CapturedOutput(logits_RV=logits_RV, token_ids_R=token_ids_R)

    def _padded(self, token_index_T: Tensor) -> SentRows | None:
        """What this rank sends in a captured step with these tokens."""
        if self._group is None:
            return None
        # The scratch slot is the last, and padding is the only thing there.
        is_padding_T = token_index_T >= self.slots.scratch_slot * self.slots.tokens_per_slot
        return self._group.padded(len(token_index_T), is_padding_T)

    def _cut_columns(self, packed: Tensor, shape: StepShape, output: CapturedOutput) -> None:
        """The sampling of its rows that cut tokens, after `_run_columns`."""
        *_, next_index_R = (columns := split_columns(packed, shape.lengths))[:-NUM_COLUMNS]
        sampling = as_sampling_columns(columns[-NUM_COLUMNS:])
        self._decoder.ops.sample_cut(output.logits_RV, sampling, output.token_ids_R)
        self.slots.keep_sampled(next_index_R, output.token_ids_R)

    def _padding(self, shape: StepShape) -> Column:
        return padding_columns(self.slots, shape)

    def _sample(self, hidden_RC: Tensor, inputs: _StepInputs, sampling: SamplingRows) -> StepOutput:
        """As in captured steps, one operation after another."""
        logits_RV = self._decoder.logits(hidden_RC)
        token_ids_R = self._decoder.ops.sample_whole(logits_RV, inputs.columns)
        if sampling.has_cuts:
            self._decoder.ops.sample_cut(logits_RV, inputs.columns, token_ids_R)
        self.slots.keep_sampled(inputs.next_index_R, token_ids_R)
        return self._finish(logits_RV, token_ids_R, sampling)

    def _finish(self, logits_RV: Tensor, token_ids_R: Tensor, sampling: SamplingRows) -> StepOutput:
        """What few rows need besides: other logits, logprobs."""
        if len(sampling.adjusted):
            sample_adjusted(self._decoder.ops, logits_RV, sampling, self.slots, token_ids_R)
        if not sampling.has_logprobs:
            return self._output(token_ids_R, None)
        asked = [self.slots.sampling.of_slot[slot].num_logprobs for slot in sampling.slots]
        return self._output(
            token_ids_R, compute_logprobs(logits_RV, token_ids_R, asked, self.slots.copies)
        )

    def _output(self, token_ids_R: Tensor, logprobs: LogprobTensors | None) -> StepOutput:
        token_ids = self.slots.copies.to_host(token_ids_R)
        on_host = None if logprobs is None else logprobs.to_host(self.slots.copies)
        ready = torch.cuda.Event() if self._device.type == "cuda" else None
        if ready is not None:
            ready.record()
        return StepOutput(token_ids=token_ids, logprobs=on_host, ready=ready)

    def _nothing(self) -> StepOutput:
        """The output of a step that samples nothing here."""
        return self._output(torch.empty(0, dtype=torch.int32), None)

    def _run_padding(self, num_tokens: int, start: int, num_samples: int = 1) -> None:
        """Run a row of padding, and sample `num_samples` tokens of it as the scratch slot asks."""
        rows = padding_row(num_tokens, start, self.slots)
        sampling = rows.repeated(num_samples).sampling_rows(self.slots.sampling)
        inputs = self._inputs(rows, sampling)
        # Every rank of a group warms up with the same sizes.
        sent = (
            None if self._group is None else self._group.exact(self._group.num_lanes * [num_tokens])
        )
        hidden_TC = self._decoder(inputs.token_ids_T, inputs.batch, sent=sent)
        self._sample(hidden_TC[inputs.sampled_R.expand(num_samples)], inputs, sampling)


def _step_group(decoder: Decoder) -> StepGroup | None:
    """The lanes with which this decoder shares experts; None: it has them to itself."""
    if decoder.experts is None:
        return None
    ranks = decoder.experts.ranks
    return StepGroup(rank=ranks.rank, num_ranks=ranks.size, ranks_per_lane=decoder.collectives.size)


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


def _layer_waiter(plan: StepPlan, wait_layer: WaitLayer) -> Callable[[int], None] | None:
    transfer_ids = sorted({int(transfer_id) for transfer_id in plan.row_loads if transfer_id >= 0})
    if not transfer_ids:
        return None

    def wait(layer: int) -> None:
        for transfer_id in transfer_ids:
            wait_layer(transfer_id, layer)

    return wait
