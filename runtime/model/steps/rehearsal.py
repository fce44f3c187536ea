"""Plans as a Scheduler would send them, carried out before there is one.

What is done for the first time takes long: a thread's handle of a library, an operation's module, a
size of pinned memory. Warm-up and captures have tried the kernels, from other threads; these plans
go the way of requests, on the thread that carries them out later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count as count_steps

import numpy as np

from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import empty, int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.warm_up import CUTTING, GREEDY, asking_for_all

_FEW_TOKENS = 40
"""The tokens of a short prompt."""
_BATCHES = (1, 2, 5, 33)
"""Numbers of requests at a time: one, and more than some blocks of rows hold."""


def rehearse(runner: ModelRunner) -> None:
    """Carry out plans of all kinds and wait for their results. The slots are free, then as before.

    What is computed is kept nowhere but in the padding page. Every rank of a step group does so at
    the same time.
    """
    slots = runner.slots
    samplings = (GREEDY, CUTTING, asking_for_all(slots.sampling.rules))
    for plan in rehearsed_plans(
        samplings,
        max_slots=slots.max_slots,
        max_model_len=slots.max_model_len,
        max_prefill_tokens=runner.max_prefill_tokens,
        num_lanes=runner.num_lanes,
    ):
        runner.apply(plan)
        runner.execute(plan, _nothing_to_wait_for).to_result(0, plan.step, 0.0)


def rehearsed_plans(
    samplings: Sequence[DeviceSampling],
    *,
    max_slots: int,
    max_model_len: int,
    max_prefill_tokens: int,
    num_lanes: int,
) -> Iterator[StepPlan]:
    """Requests that come, compute their prompts, decode twice and go, of each sampling in turn."""
    long = min(max_prefill_tokens, max_model_len - 2)
    few = min(_FEW_TOKENS, long)
    # No step has more tokens than a Scheduler's may have: buffers between ranks hold no more.
    most = max(1, min(max_slots, max_prefill_tokens // few))
    batches = [(min(count, most), few) for count in _BATCHES] + [(1, long)]
    taken = empty()
    steps = count_steps()
    for num_requests, num_tokens in batches:
        added = tuple(
            AddedRequest(
                slot=Slot(slot),
                request_id=RequestId(f"rehearsed-{slot}"),
                token_ids=int32_array(np.zeros(num_tokens)),
                num_prompt_tokens=num_tokens,
                # One that is alone asks for all.
                sampling=samplings[(slot - 1) % len(samplings)],
            )
            for slot in range(num_requests)
        )
        yield replace(
            _rows(next(steps), num_requests, (0, num_tokens), num_lanes),
            removed_slots=taken,
            added=added,
        )
        for stop in (num_tokens + 1, num_tokens + 2):
            yield _rows(next(steps), num_requests, (stop - 1, stop), num_lanes)
        taken = int32_array(range(num_requests))
    yield StepPlan(step=next(steps), removed_slots=taken)


def _rows(step: int, num_rows: int, tokens: tuple[int, int], num_lanes: int) -> StepPlan:
    """A row in each of so many slots, from one position to another; nothing of them is kept."""
    start, stop = tokens
    return StepPlan(
        step=step,
        row_slots=int32_array(range(num_rows)),
        row_starts=int32_array([start] * num_rows),
        row_num_tokens=int32_array([stop - start] * num_rows),
        row_write_starts=int32_array([stop] * num_rows),
        row_output_positions=int32_array([0] * num_rows),
        row_loads=int32_array([-1] * num_rows),
        group_rows=int32_array([num_rows] * num_lanes),
        group_tokens=int32_array([num_rows * (stop - start)] * num_lanes),
    )


def _nothing_to_wait_for(transfer_id: int, layer: int) -> None:
    """No row names a load."""
