"""Log-probabilities of sampled and most likely tokens, from raw logits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raydix.runtime.messages.plan import TokenLogprobs
from raydix.runtime.model.staging.pinned_copies import PinnedCopies

BLOCK_ROWS = 32
"""Rows at a time: they bound the memory that their float32 copies take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTensors:
    """Logprobs of the rows that asked. J rows that asked, K the most that one asked for."""

    num_logprobs: tuple[int | None, ...]
    """What each sampling row asked for."""
    sampled_ids_J: Tensor
    sampled_logprobs_J: Tensor
    sampled_ranks_J: Tensor
    top_ids_JK: Tensor
    top_logprobs_JK: Tensor

    def to_host(self, copies: PinnedCopies) -> "LogprobTensors":
        """Enqueue copies to pinned memory; on the cpu there is nothing to do."""
        return replace(
            self,
            sampled_ids_J=copies.to_host(self.sampled_ids_J),
            sampled_logprobs_J=copies.to_host(self.sampled_logprobs_J),
            sampled_ranks_J=copies.to_host(self.sampled_ranks_J),
            top_ids_JK=copies.to_host(self.top_ids_JK),
            top_logprobs_JK=copies.to_host(self.top_logprobs_JK),
        )

    def to_messages(self) -> tuple[TokenLogprobs | None, ...]:
        """One entry per sampling row. The tensors must have arrived on the host."""
        asked = [count for count in self.num_logprobs if count is not None]
        columns = zip(
            self.sampled_ids_J.tolist(),
            self.sampled_logprobs_J.tolist(),
            self.sampled_ranks_J.tolist(),
            self.top_ids_JK.tolist(),
            self.top_logprobs_JK.tolist(),
            asked,
            strict=True,
        )

        messages = iter(
            TokenLogprobs(
                token_ids=(token_id, *top_ids[:count]),
                logprobs=(logprob, *top_logprobs[:count]),
                ranks=(rank, *range(1, count + 1)),
            )
            for token_id, logprob, rank, top_ids, top_logprobs, count in columns
        )
        return tuple(None if count is None else next(messages) for count in self.num_logprobs)


def compute_logprobs(
    logits_RV: Tensor, token_ids_R: Tensor, num_logprobs: Sequence[int | None], copies: PinnedCopies
) -> LogprobTensors | None:
    """Log-softmax in float32 of the rows that asked; None if none did.

    A rank is 1 + the number of likelier tokens.
    """
    counts = [
        min(count, logits_RV.shape[1]) if count is not None else None for count in num_logprobs
    ]
    asked = [row for row, count in enumerate(counts) if count is not None]
    if not asked:
        return None

    [columns] = copies.to_device({"index_J": np.array(asked, dtype=np.int64)})
    num_top = max(count or 0 for count in counts)
    blocks = [
        _block_logprobs(logits_RV, token_ids_R, index, num_top)
        for index in columns["index_J"].split(BLOCK_ROWS)
    ]
    sampled_ids_J, sampled_logprobs_J, sampled_ranks_J, top_ids_JK, top_logprobs_JK = (
        torch.cat(parts) for parts in zip(*blocks, strict=True)
    )

    return LogprobTensors(
        num_logprobs=tuple(counts),
        sampled_ids_J=sampled_ids_J,
        sampled_logprobs_J=sampled_logprobs_J,
        sampled_ranks_J=sampled_ranks_J,
        top_ids_JK=top_ids_JK,
        top_logprobs_JK=top_logprobs_JK,
    )


def _block_logprobs(
    logits_RV: Tensor, token_ids_R: Tensor, index_J: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tensors of `LogprobTensors` of some rows, in order."""
    # A row without a token has no logprobs that count, either.
    token_ids_J = token_ids_R[index_J].long().clamp_min(0)
    return token_ids_J, *logprobs_of(logits_RV[index_J], token_ids_J, num_top)


def logprobs_of(
    logits_RV: Tensor, token_ids_R: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The logprob and rank of each row's token, and ids and logprobs of the likeliest tokens.

    `token_ids_R`: int64. The logprobs are float32.
    """
    logprobs_RV = logits_RV.float().log_softmax(-1)
    logprobs_R1 = logprobs_RV.gather(1, token_ids_R[:, None])
    top_logprobs_RK, top_ids_RK = logprobs_RV.topk(num_top, dim=-1)
    ranks_R = (logprobs_RV > logprobs_R1).sum(-1) + 1
    return logprobs_R1[:, 0], ranks_R, top_ids_RK, top_logprobs_RK
