"""Tokens that would end the output may not be sampled before `min_tokens` of it.

Legend: B rows of a block, V vocabulary, M masked places.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.logit_rules.rule import Asked, Block, BlockTokens
from raydix.runtime.model.staging.columns import Column, Columns


class MinTokens:
    """A `LogitRule` that masks `masked_until_min_tokens`. It keeps their ids."""

    def read(self, sampling: DeviceSampling) -> Asked[Column] | None:
        """The token ids that must not come before the minimum is reached, if there is one."""
        if not sampling.min_tokens:
            return None
        masked_ids = np.array(sampling.masked_until_min_tokens, dtype=np.int64)
        return Asked(masked_ids, before=sampling.min_tokens)

    def columns(self, block: Block[Column]) -> Columns | None:
        """The rows and ids of all requests, one entry for each id that is masked."""
        if not block.asked:
            return None
        counts = [len(token_ids) for token_ids in block.asked.values()]
        rows_M = np.repeat(np.array([*block.asked]), counts)
        ids_M = np.concatenate([*block.asked.values()])
        # A stop id beyond the vocabulary cannot be sampled anyway.
        is_known_M = (ids_M >= 0) & (ids_M < block.vocab_size)
        return {"rows_M": rows_M[is_known_M], "ids_M": ids_M[is_known_M]}

    def apply(
        self, logits_BV: Tensor, columns: Mapping[str, Tensor], tokens: BlockTokens
    ) -> Tensor:
        """Set the logit of each masked token to minus infinity."""
        # A number as the value would make the host wait for the device.
        masked = logits_BV.new_full((), float("-inf"))
        return logits_BV.index_put_((columns["rows_M"], columns["ids_M"]), masked)

    def example(self, sampling: DeviceSampling) -> DeviceSampling:
        """The same parameters with a minimum of one token."""
        return replace(sampling, min_tokens=1, masked_until_min_tokens=(0,))
