"""What a step leaves on the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raydix.runtime.messages.arrays import empty, int32_array
from raydix.runtime.messages.plan import StepResult
from raydix.runtime.model.logprobs import LogprobTensors


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
