"""What a step leaves on the host."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from raydix.kernels.ops import ModelOps
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.plan import StepResult
from raydix.runtime.model.sampling.adjusted_sampling import sample_adjusted
from raydix.runtime.model.sampling.logprobs import LogprobTensors, compute_logprobs
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_sampling import SamplingRows
from raydix.runtime.model.staging.pinned_copies import PinnedCopies
from raydix.runtime.model.steps.prompt_rows import PromptTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a step sampled, on the host; on cuda in pinned memory, valid once `ready` has passed."""

    token_ids: Tensor
    """int32, one entry per sampling row, in row order."""
    logprobs: LogprobTensors | None
    prompts: PromptTensors | None
    ready: torch.cuda.Event | None
    """Recorded after the step's last work; None on cpu."""
    slow_slots: Int32Array = field(default_factory=empty)
    """The same as in `StepResult`; it is known on the host."""

    def token_id(self, row: int) -> int:
        """The token of a sampling row; waits for the step."""
        if self.ready is not None:
            self.ready.synchronize()
        # Faster than an index of the tensor, of which a batch takes one for each row.
        return int(self.token_ids.numpy()[row])

    def to_result(self, rank: int, step: int, compute_s: float) -> StepResult:
        """Wait for the step and make its message."""
        if self.ready is not None:
            self.ready.synchronize()

        prompts = self.prompts
        scored = None if prompts is None else prompts.logprobs
        scored_slots, prompt_logprobs = (empty(), ()) if scored is None else scored.to_messages()
        return StepResult(
            rank=rank,
            step=step,
            token_ids=int32_array(self.token_ids.numpy()) if len(self.token_ids) else empty(),
            logprobs=self.logprobs.to_messages() if self.logprobs is not None else (),
            scored_slots=scored_slots,
            prompt_logprobs=prompt_logprobs,
            not_finite_slots=empty() if prompts is None else prompts.not_finite_slots(),
            slow_slots=self.slow_slots,
            compute_s=compute_s,
        )


def finish_step(
    ops: ModelOps,
    slots: RequestSlots,
    logits_RV: Tensor,
    token_ids_R: Tensor,
    sampling: SamplingRows,
    prompts: PromptTensors | None,
) -> StepOutput:
    """What few rows need after all were sampled: other logits, logprobs."""
    if len(sampling.adjusted):
        sample_adjusted(ops, logits_RV, sampling, slots, token_ids_R)

    logprobs = None
    if sampling.has_logprobs:
        asked = [slots.sampling.of_slot[slot].num_logprobs for slot in sampling.slots]
        logprobs = compute_logprobs(logits_RV, token_ids_R, asked, slots.copies)
    return make_output(slots.copies, token_ids_R, logprobs, prompts)


def make_output(
    copies: PinnedCopies,
    token_ids_R: Tensor,
    logprobs: LogprobTensors | None,
    prompts: PromptTensors | None,
) -> StepOutput:
    """Enqueue the copies of what a step has found to the host."""
    token_ids = copies.to_host(token_ids_R)
    logprobs = None if logprobs is None else logprobs.to_host(copies)
    prompts = None if prompts is None else prompts.to_host(copies)
    return StepOutput(
        token_ids=token_ids,
        logprobs=logprobs,
        prompts=prompts,
        ready=copies.note_end(),
    )
