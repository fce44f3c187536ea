"""Tokens for rows of given logits, sampled on the CPU as a step's rows are."""

from collections.abc import Sequence

import numpy as np
import torch

from raydix.ids import RequestId, Slot
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.sampling.columns import as_sampling_columns
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan
from raydix.runtime.model.logit_rules.table import LOGIT_RULES, LogitRules
from raydix.runtime.model.sampling.adjusted_sampling import sample_adjusted
from raydix.runtime.model.slots.request_slots import RequestSlots

CPU = torch.device("cpu")


def sample(
    logits: torch.Tensor,
    sampling: Sequence[DeviceSampling],
    positions: Sequence[int],
    histories: Sequence[tuple[list[int], list[int]]] | None = None,
    *,
    rules: LogitRules = LOGIT_RULES,
) -> list[int]:
    """`histories`: (prompt, output) per row, the output as long as the row's output position."""
    histories = histories or [([1, 2], [])] * len(sampling)
    slots = RequestSlots(
        pool_pages=[40],
        page_size=8,
        max_slots=len(sampling),
        max_model_len=60,
        device=CPU,
        rules=rules,
    )
    added = tuple(
        AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(str(slot)),
            token_ids=int32_array(prompt + output),
            num_prompt_tokens=len(prompt),
            sampling=each,
        )
        for slot, (each, (prompt, output)) in enumerate(zip(sampling, histories, strict=True))
    )
    slots.apply(StepPlan(step=0, added=added))
    ends = np.array([len(prompt) + len(output) for prompt, output in histories])
    rows = slots.sampling.rows(np.arange(len(sampling)), ends, np.array(positions))

    ops = ReferenceOps()
    columns = as_sampling_columns(
        {name: torch.from_numpy(column) for name, column in rows.columns.items()}
    )
    token_ids = ops.sample_whole(logits, columns)
    if rows.has_cuts:
        ops.sample_cut(logits, columns, token_ids)
    if len(rows.adjusted):
        sample_adjusted(ops, logits, rows, slots, token_ids)
    return token_ids.tolist()
