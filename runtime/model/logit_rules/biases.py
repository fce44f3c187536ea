"""A request's biases are added to the logits of the tokens that it names.

Legend: B rows of a block, V vocabulary, M biased places.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.logit_rules.rule import Asked, Block, BlockTokens
from raydix.runtime.model.staging.columns import Column, Columns

IdsAndBiases = tuple[Column, NDArray[np.float64]]
"""Tokens, and what is added to the logit of each."""


class Biases:
    """A `LogitRule` that adds a request's `biases`. It keeps them as arrays."""

    def read(self, sampling: DeviceSampling) -> Asked[IdsAndBiases] | None:
        """The biased token ids with their biases, if there are any."""
        if not sampling.biases:
            return None
        token_ids = np.array(sampling.biased_token_ids, dtype=np.int64)
        return Asked((token_ids, np.array(sampling.biases, dtype=np.float64)))

    def columns(self, block: Block[IdsAndBiases]) -> Columns | None:
        """The rows, ids and biases of all requests, one entry for each bias."""
        if not block.asked:
            return None
        counts = [len(token_ids) for token_ids, _ in block.asked.values()]
        rows_M = np.repeat(np.array([*block.asked]), counts)
        ids_M = np.concatenate([token_ids for token_ids, _ in block.asked.values()])
        biases_M = np.concatenate([biases for _, biases in block.asked.values()])
        # Like a mask, the bias of a token that the model does not have says nothing.
        is_known_M = (ids_M >= 0) & (ids_M < block.vocab_size)
        return {
            "rows_M": rows_M[is_known_M],
            "ids_M": ids_M[is_known_M],
            "biases_M": biases_M[is_known_M],
        }

    def apply(
        self, logits_BV: Tensor, columns: Mapping[str, Tensor], tokens: BlockTokens
    ) -> Tensor:
        """Add each bias to its logit."""
        # No place has two biases, so none is lost.
        places = columns["rows_M"], columns["ids_M"]
        return logits_BV.index_put_(places, logits_BV[places] + columns["biases_M"].float())

    def example(self, sampling: DeviceSampling) -> DeviceSampling:
        """The same parameters with a bias."""
        return replace(sampling, biased_token_ids=(0,), biases=(1.0,))
