"""Carries out the rows of numbered plans: gathers a step's tokens, runs the decoder, samples, keeps the tokens.

Sampled tokens are written to the slot's tokens on the device, so the next plan may use one that the Scheduler has not
seen yet. Lengths are known on the host; nothing here waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.errors import AccountingError
from raydix.kernels.reference import AttentionRows, DecodeRows, PrefillRow
from raydix.runtime.messages.arrays import empty, int32_array
from raydix.runtime.messages.plan import StepPlan, StepResult
from raydix.runtime.model.attention import AttentionBatch, GroupBatch
from raydix.runtime.model.decoder import Decoder
from raydix.runtime.model.logprobs import LogprobTensors, compute_logprobs
from raydix.runtime.model.request_slots import RequestSlots, copy_to_device, run_offsets
from raydix.runtime.model.sampling import SamplingRows, sample

WaitLayer = Callable[[int, int], None]
"""Called with (transfer id, layer) before a layer uses KV that this load brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a step sampled, on the device."""

    token_ids: Tensor
    """int32, one entry per sampling row, in row order."""
    host_token_ids: Tensor
    """The same on the host (pinned on cuda); valid once `ready` has passed."""
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
            token_ids=int32_array(self.host_token_ids.numpy()) if len(self.host_token_ids) else empty(),
            logprobs=self.logprobs.to_messages() if self.logprobs is not None else (),
            compute_s=compute_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A plan's rows as int64 columns on the host."""

    slots: NDArray[np.int64]
    starts: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    write_starts: NDArray[np.int64]
    output_positions: NDArray[np.int64]

    @property
    def ends(self) -> NDArray[np.int64]:
        """Position after each row's last token: its context, and where its sampled token goes."""
        return self.starts + self.num_tokens

    @property
    def sampling(self) -> NDArray[np.int64]:
        """Indices of the rows that sample."""
        return np.flatnonzero(self.output_positions >= 0)


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
        self._page_size = page_size
        self._device = device
        self.slots = RequestSlots(
            num_groups=len(pools),
            page_size=page_size,
            max_slots=max_slots,
            max_model_len=max_model_len,
            device=device,
        )

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
        rows = self._rows(plan)
        if not len(rows.slots):
            return self._output(torch.empty(0, dtype=torch.int32, device=self._device), None)
        token_ids_T, positions_T, batch, sampled_T = self._batch(rows)
        hidden_TC = self._decoder(token_ids_T, positions_T, batch, _layer_waiter(plan, wait_layer))
        return self._sample(hidden_TC, rows, sampled_T)

    def check(self) -> None:
        """Raise AccountingError if a block table names a page that its pool lacks. Waits for the device."""
        for group, (table_XN, pool) in enumerate(zip(self.slots.tables_XN, self._pools, strict=True)):
            lowest, highest = (int(bound) for bound in table_XN.aminmax())
            if lowest < 0 or highest >= pool.shape[0]:
                raise AccountingError(
                    f"Block tables of group {group} name pages {lowest} to {highest}; its pool has {pool.shape[0]}."
                )

    def _rows(self, plan: StepPlan) -> _Rows:
        rows = _Rows(
            slots=plan.row_slots.astype(np.int64),
            starts=plan.row_starts.astype(np.int64),
            num_tokens=plan.row_num_tokens.astype(np.int64),
            write_starts=plan.row_write_starts.astype(np.int64),
            output_positions=plan.row_output_positions.astype(np.int64),
        )
        max_model_len = self.slots.max_model_len
        if (rows.num_tokens < 1).any() or (rows.starts < 0).any() or (rows.ends > max_model_len).any():
            raise AccountingError(
                f"Plan {plan.step} has rows from {rows.starts.tolist()} to {rows.ends.tolist()}; expected at least one "
                f"token each, within max_model_len {max_model_len}."
            )
        if not self.slots.is_taken[rows.slots].all():
            raise AccountingError(f"Plan {plan.step} runs slots {rows.slots.tolist()}, of which some are free.")
        return rows

    def _batch(self, rows: _Rows) -> tuple[Tensor, Tensor, AttentionBatch, Tensor]:
        """Return token_ids_T, positions_T, the attention batch, and the index in T of each sampled row's last token."""
        row_of_token = np.repeat(np.arange(len(rows.slots)), rows.num_tokens)
        positions = rows.starts[row_of_token] + run_offsets(rows.num_tokens)
        is_kept = positions >= rows.write_starts[row_of_token]
        last_tokens = np.cumsum(rows.num_tokens) - 1
        decode = np.flatnonzero(rows.num_tokens == 1)
        columns = copy_to_device(
            [
                rows.slots,
                rows.slots[row_of_token] * self.slots.tokens_XL.shape[1] + positions,
                row_of_token,
                positions,
                is_kept.astype(np.int64),
                last_tokens[rows.sampling],
                decode,
                last_tokens[decode],
                rows.ends[decode],
            ],
            self._device,
        )
        slots_R, token_index_T, row_T, positions_T, is_kept_T, sampled_T, *decode_columns = columns
        attention_rows = AttentionRows(prefill=_prefill_rows(rows), decode=_decode_rows(rows, decode, decode_columns))
        groups = tuple(
            self._group_batch(group, slots_R, row_T, positions_T, is_kept_T) for group in range(len(self._pools))
        )
        token_ids_T = self.slots.tokens_XL.view(-1)[token_index_T]
        return token_ids_T, positions_T, AttentionBatch(rows=attention_rows, groups=groups), sampled_T

    def _group_batch(
        self, group: int, slots_R: Tensor, row_T: Tensor, positions_T: Tensor, is_kept_T: Tensor
    ) -> GroupBatch:
        tables_RN = self.slots.tables_XN[group][slots_R]
        pages_T = tables_RN[row_T, positions_T // self._page_size].long()
        slot_mapping_T = pages_T * self._page_size + positions_T % self._page_size
        return GroupBatch(
            pool_PLH2SD=self._pools[group],
            block_tables_RN=tables_RN,
            slot_mapping_T=torch.where(is_kept_T > 0, slot_mapping_T, -1),
        )

    def _sample(self, hidden_TC: Tensor, rows: _Rows, sampled_T: Tensor) -> StepOutput:
        chosen = rows.sampling
        if not len(chosen):
            return self._output(torch.empty(0, dtype=torch.int32, device=self._device), None)
        logits_RV = self._decoder.logits(hidden_TC[sampled_T])
        slots = rows.slots[chosen]
        sampling = [self.slots.sampling[slot] for slot in slots]
        slots_R, ends_R = copy_to_device([slots, rows.ends[chosen]], self._device)
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
        return self._output(token_ids_R, compute_logprobs(logits_RV, token_ids_R, [s.num_logprobs for s in sampling]))

    def _output(self, token_ids_R: Tensor, logprobs: LogprobTensors | None) -> StepOutput:
        if self._device.type != "cuda":
            return StepOutput(token_ids=token_ids_R, host_token_ids=token_ids_R, logprobs=logprobs, ready=None)
        host_token_ids = torch.empty(len(token_ids_R), dtype=torch.int32, pin_memory=True)
        host_token_ids.copy_(token_ids_R, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return StepOutput(token_ids=token_ids_R, host_token_ids=host_token_ids, logprobs=logprobs, ready=ready)


def _prefill_rows(rows: _Rows) -> tuple[PrefillRow, ...]:
    first_tokens = np.cumsum(rows.num_tokens) - rows.num_tokens
    return tuple(
        PrefillRow(
            row=int(row),
            first_token=int(first_tokens[row]),
            num_tokens=int(rows.num_tokens[row]),
            context_tokens=int(rows.ends[row]),
        )
        for row in np.flatnonzero(rows.num_tokens > 1)
    )


def _decode_rows(rows: _Rows, decode: NDArray[np.int64], columns: list[Tensor]) -> DecodeRows | None:
    if not len(decode):
        return None
    rows_B, tokens_B, context_tokens_B = columns
    return DecodeRows(
        rows_B=rows_B,
        tokens_B=tokens_B,
        context_tokens_B=context_tokens_B,
        max_context_tokens=int(rows.ends[decode].max()),
    )


def _layer_waiter(plan: StepPlan, wait_layer: WaitLayer) -> Callable[[int], None] | None:
    transfer_ids = sorted({int(transfer_id) for transfer_id in plan.row_loads if transfer_id >= 0})
    if not transfer_ids:
        return None

    def wait(layer: int) -> None:
        for transfer_id in transfer_ids:
            wait_layer(transfer_id, layer)

    return wait
