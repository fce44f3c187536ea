"""Penalties for tokens that a request has already, as in vLLM.

They are counted from the tokens each time, so that nothing is kept between steps.

Legend: B rows of a block, V vocabulary, L tokens of the longest row.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.logit_rules.rule import Asked, Block, BlockTokens
from raydix.runtime.model.staging.columns import Columns

Factors = tuple[float, float, float]
"""Repetition, presence and frequency penalty."""
_NO_PENALTIES: Factors = (1.0, 0.0, 0.0)


class Penalties:
    """A `LogitRule` of penalties: repetition is of prompt and output, the others of the output."""

    def read(self, sampling: DeviceSampling) -> Asked[Factors] | None:
        """The three penalties, unless all of them do nothing."""
        factors = (
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        )
        return None if factors == _NO_PENALTIES else Asked(factors)

    def columns(self, block: Block[Factors]) -> Columns | None:
        """The penalties of each row; those of a row that asks for none do nothing."""
        if not block.asked:
            return None
        penalties_B3 = np.array(
            [block.asked.get(row, _NO_PENALTIES) for row in range(block.num_rows)]
        )
        return {"penalties_3B": penalties_B3.T}

    def apply(
        self, logits_BV: Tensor, columns: Mapping[str, Tensor], tokens: BlockTokens
    ) -> Tensor:
        """Penalise the tokens that a row's prompt or output has."""
        tokens_BL = tokens.tokens_XL[tokens.slots_B, : tokens.max_tokens].long()
        positions_L = torch.arange(tokens.max_tokens, device=logits_BV.device)
        is_token_BL = positions_L < tokens.num_tokens_B[:, None]
        is_output_BL = is_token_BL & (positions_L >= tokens.num_prompt_tokens_B[:, None])
        counts_BV = torch.zeros_like(logits_BV).scatter_add_(1, tokens_BL, is_token_BL.float())
        repetition_B1, presence_B1, frequency_B1 = columns["penalties_3B"].float()[:, :, None]

        scaled_BV = torch.where(logits_BV > 0, logits_BV / repetition_B1, logits_BV * repetition_B1)
        logits_BV = torch.where(counts_BV > 0, scaled_BV, logits_BV)
        counts_BV.zero_().scatter_add_(1, tokens_BL, is_output_BL.float())
        return logits_BV - frequency_B1 * counts_BV - presence_B1 * (counts_BV > 0)

    def example(self, sampling: DeviceSampling) -> DeviceSampling:
        """The same parameters with all three penalties."""
        return replace(
            sampling, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
        )
