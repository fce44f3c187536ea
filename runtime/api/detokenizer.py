"""Token ids to text, piece by piece: the joined pieces equal one decode of all ids."""

import codecs
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_HELD_TOKENS = 8
"""A character has at most four bytes: one that is not whole after so many tokens never will be."""


class Detokenizer(Protocol):
    """The text of one request's output."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that no later id can change."""
        ...

    def flush(self) -> str:
        """Return what was held back inside a character: no more ids follow."""
        ...


class ByteLevelDetokenizer:
    """For tokenizers whose tokens are byte strings (Llama 3, Qwen): exact, about 0.3 us a token."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return all text but an unfinished character."""
        return self._decoder.decode(b"".join([self._token_bytes(each) for each in token_ids]))

    def flush(self) -> str:
        """Return the replacement character of an unfinished character, if any."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window with and without the new ids.

    What the new ids add is their text.

    The window gives the new ids their left context (sentencepiece strips the space of a first
    word). Byte tokens (`<0x0A>`) are held back until the run of them ends: the tokenizer decodes a
    run as a whole, and replaces all of it if it is no valid UTF-8.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        byte_token_ids: Collection[int],
        word_ids: Collection[int],
    ) -> None:
        """`word_ids` end a run of byte tokens: all ids that have text, but for the byte tokens."""
        self._decode = decode
        self._byte_token_ids = byte_token_ids
        self._word_ids = word_ids
        self._is_in_run = False
        self._window: list[int] = []
        self._num_read = 0
        """How many ids of the window have been returned as text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that no later id can change."""
        self._window += token_ids
        for each in token_ids:
            if each in self._byte_token_ids:
                self._is_in_run = True
            elif each in self._word_ids:
                self._is_in_run = False
        if self._is_in_run or not token_ids:
            return ""

        # Ends inside a character as long as the decoder puts a replacement there.
        text = self._decode(self._window)
        is_open = (
            text.endswith(_REPLACEMENT) and len(self._window) - self._num_read < _MAX_HELD_TOKENS
        )
        return "" if is_open else self._advance(text)

    def flush(self) -> str:
        """Return what was held back."""
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        num_shown = len(self._decode(self._window[: self._num_read]))
        if len(text) > num_shown:
            del self._window[: self._num_read]
            self._num_read = len(self._window)
        return text[num_shown:]
