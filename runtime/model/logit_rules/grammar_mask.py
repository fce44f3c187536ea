"""Tokens that a request's grammar does not allow may not be sampled.

Legend: B rows of a block, M masked ones among them, V vocabulary, W words of 32 bits.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from raydix.ids import GrammarKey
from raydix.kernels.ops import ModelOps
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.grammars.slot_matchers import EXAMPLE_GRAMMAR, SlotMatchers
from raydix.runtime.model.logit_rules.rule import Asked, Block, BlockTokens
from raydix.runtime.model.staging.columns import Columns

_WORD_BITS = 32


class GrammarMask:
    """A `LogitRule` that masks by the matchers of slots. It comes last, so nothing lifts a mask."""

    def __init__(self, matchers: SlotMatchers, ops: ModelOps) -> None:
        self._matchers = matchers
        self._ops = ops

    def read(self, sampling: DeviceSampling) -> Asked[GrammarKey] | None:
        """The key of the request's grammar, if there is one."""
        return None if sampling.grammar is None else Asked(sampling.grammar)

    def columns(self, block: Block[GrammarKey]) -> Columns | None:
        """The rows, and a bit for each token that may come in them.

        It waits for the tokens that earlier steps have sampled in these rows: the layers of this
        step run meanwhile.
        """
        if not block.asked:
            return None
        rows_M = np.array([*block.asked], dtype=np.int64)
        num_words = -(-block.vocab_size // _WORD_BITS)
        words_MW = np.empty((len(rows_M), num_words), dtype=np.int32)
        self._matchers.fill(
            block.slots[rows_M].tolist(), block.positions[rows_M].tolist(), words_MW
        )
        return {"rows_M": rows_M, "words_MW": words_MW}

    def apply(
        self, logits_BV: Tensor, columns: Mapping[str, Tensor], tokens: BlockTokens
    ) -> Tensor:
        """Set the logit of each token that may not come to minus infinity."""
        self._ops.mask_tokens(logits_BV, columns["rows_M"], columns["words_MW"])
        return logits_BV

    def example(self, sampling: DeviceSampling) -> DeviceSampling:
        """The same parameters with a grammar that allows every token but the first."""
        return replace(sampling, grammar=EXAMPLE_GRAMMAR)
