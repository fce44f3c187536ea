"""A matcher: which tokens may follow the output so far, by its grammar.

Legend: W words of 32 bits, one bit for each token of the vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raydix.ids import GrammarKey
from raydix.runtime.messages.grammar import GrammarChanges

Words = NDArray[np.int32]


class Matcher(Protocol):
    """Where one output stands in its grammar."""

    def advance(self, token_id: int) -> None:
        """Take the next token of the output."""

    def fill(self, words_W: Words) -> None:
        """Set the bits of the tokens that may come next, and of no other.

        All of them behind the end of the grammar: what is sampled there is thrown away.
        """


class GrammarLibrary(Protocol):
    """The grammars that a rank has been sent."""

    def change(self, changes: GrammarChanges) -> None:
        """Drop some, then keep others."""

    def matcher(self, key: GrammarKey, token_ids: Sequence[int]) -> Matcher:
        """A matcher behind these tokens of an output. Others may be waited for when it is used."""
