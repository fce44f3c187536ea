"""How many tokens a text has at the least, told from its bytes in a fraction of the time.

A token that holds two neighbouring bytes is no longer than the longest one of the vocabulary that
holds them side by side. So a byte is at least that part of a token which one of the longest token
is that can hold it and a neighbour: a digit, where each is a token, counts as a whole one, and a
space in a row of spaces as a hundredth.
"""

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.api.text_steps import TextSteps
from raydix.runtime.api.token_bytes import TokenBytes

_PIECE_BYTES = 64 << 10
_ROUNDING = 1e-6
_SPACES = b" \t\n\v\f\r\x1c\x1d\x1e\x1f"


class LeastTokens:
    """A lower bound on a text's tokens, for one tokenizer. Usable from several threads."""

    def __init__(self, backend: Any, token_bytes: TokenBytes, steps: TextSteps) -> None:
        """`backend` is a Tokenizer of the tokenizers library, `steps` are its own."""
        names = backend.get_vocab(with_added_tokens=True)
        tokens = [token_bytes.of_name(each) for each in names]
        self._steps = steps
        self._longest = _longest_with(tokens)
        # What has no token of its own is lost, and its neighbours may be joined over the gap.
        self._is_known = np.zeros(256, dtype=bool)
        self._is_known[[each[0] for each in tokens if len(each) == 1]] = True
        self._counts = self._is_known.copy()
        if steps.drops_spaces:
            # Beyond ASCII there are more of them.
            self._counts[list(_SPACES)] = False
            self._counts[128:] = False

    def exceed(self, text: str, max_tokens: int) -> bool:
        """Whether it is certain that the text has more tokens. Costs no more than it must."""
        # No token is made of less than a byte.
        if len(text) * 4 <= max_tokens:
            return False
        data = np.frombuffer(self._seen(text), dtype=np.uint8)
        total = 0.0
        for start in range(0, len(data), _PIECE_BYTES):
            total += self._least_of(data, start, min(start + _PIECE_BYTES, len(data)))
            if total * (1 - _ROUNDING) > max_tokens:
                return True
        return False

    def _seen(self, text: str) -> bytes:
        """The bytes that tokens are made of."""
        if self._steps.is_composed and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        if self._steps.mark is not None:
            text = text.replace(self._steps.mark, " ")
        return text.encode()

    def _least_of(self, data: NDArray[np.uint8], start: int, end: int) -> float:
        """Tokens that these bytes are at the least."""
        first, last = max(start - 1, 0), min(end + 1, len(data))
        seen = data[first:last].astype(np.intp)
        longest = np.ones(len(seen), dtype=np.uint16)
        if len(seen) > 1:
            pairs = self._longest[seen[:-1] * 256 + seen[1:]]
            longest[1:] = pairs
            np.maximum(longest[:-1], pairs, out=longest[:-1])
        counts, is_known = self._counts[seen], self._is_known[seen]
        counts[1:] &= is_known[:-1]
        counts[:-1] &= is_known[1:]
        own = slice(start - first, end - first)
        return float((counts[own] / longest[own]).sum())


def _longest_with(tokens: list[bytes]) -> NDArray[np.uint16]:
    """The length of the longest token with a pair of bytes side by side, or 1, for each pair."""
    # From the shortest to the longest: the last one written stays.
    ordered = sorted(tokens, key=len)
    data = np.frombuffer(b"".join(ordered), dtype=np.uint8).astype(np.intp)
    lengths = np.array([len(each) for each in ordered])
    owners = np.repeat(np.arange(len(ordered)), lengths)

    longest = np.ones(1 << 16, dtype=np.uint16)
    is_inside = owners[:-1] == owners[1:]
    pairs = (data[:-1] * 256 + data[1:])[is_inside]
    np.maximum.at(longest, pairs, lengths[owners[:-1]][is_inside].astype(np.uint16))
    return longest
