"""A matcher: which tokens may follow the output so far, by its grammar.

Legend: M matchers, W words of 32 bits, one bit for each token of the vocabulary.
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


class GrammarLibrary(Protocol):
    """The grammars that a rank has been sent."""

    def change(self, changes: GrammarChanges) -> None:
        """Drop some, then keep others."""

    def matcher(self, key: GrammarKey, token_ids: Sequence[int]) -> Matcher:
        """A matcher behind these tokens of an output. Others may be waited for when it is used."""

    def fill(self, matchers: Sequence[Matcher], words_MW: Words) -> None:
        """Set in each matcher's row the bits of the tokens that may come next, and of no other.

        `matchers` are of this library. All bits are set behind the end of a grammar: what is
        sampled there is thrown away. What the rows held before has no part in it.
        """
