"""Token ids to text, piece by piece: the joined pieces equal one decode of all ids.

Output goes on behind the prompt: a tokenizer of sentencepiece's kind strips the space of a text's
first word, which the output's first one is not.
"""

import codecs
import re
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from raydix.runtime.api.token_bytes import TokenBytes

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_HELD_TOKENS = 8
"""The most tokens held back: a character has at most four bytes, so more will not complete it."""
_MAX_OPEN_BYTES = 3
"""The most bytes of a character that is not whole."""
_NUM_TOKENS_BEHIND = 8
_INVALID_BYTE = re.compile("[\udc80-\udcff]")


class Detokenizer(Protocol):
    """The text of one request's output."""

    @property
    def is_open(self) -> bool:
        """The ids so far end inside a character, which is held back."""
        ...

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that no later id can change."""
        ...

    def flush(self) -> str:
        """Return what was held back inside a character: no more ids follow."""
        ...


class ByteDetokenizer:
    """Decodes tokens that are bytes: exact, about 0.3 us a token.

    A character is told with the token that completes it, also within a run of byte tokens. What is
    no UTF-8 is replaced as the tokenizer's kind does: each byte of a byte token (as sentencepiece
    has it), and as much of a character as there is where all tokens are byte strings.
    """

    def __init__(
        self, token_bytes: TokenBytes, hidden_ids: Container[int], behind: Sequence[int] = ()
    ) -> None:
        """`hidden_ids` have no text; `behind`: the ids that come before the first pushed one."""
        self._bytes_of = token_bytes
        self._hidden_ids = hidden_ids
        self._replaces_bytes = not token_bytes.is_byte_level
        errors = "surrogateescape" if self._replaces_bytes else "replace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        self._is_first = not any(self._shown(each) for each in behind)
        """Whether the next token begins the text."""
        self._decoder.decode(self._end_of(behind))

    @property
    def is_open(self) -> bool:
        """Whether the ids so far end inside a character, as `Detokenizer.is_open` says."""
        return bool(self._decoder.getstate()[0])

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return all text but an unfinished character."""
        if self._is_first:
            token_ids = list(token_ids)
            return self._decoded(self._first_bytes(token_ids))
        return self._decoded(b"".join([self._shown(each) for each in token_ids]))

    def flush(self) -> str:
        """Return what stands for an unfinished character, if there is one."""
        return self._decoded(b"", is_end=True)

    def _decoded(self, data: bytes, *, is_end: bool = False) -> str:
        text = self._decoder.decode(data, is_end)
        if self._replaces_bytes and not text.isascii():
            return _INVALID_BYTE.sub(_REPLACEMENT, text)
        return text

    def _shown(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden_ids else self._bytes_of(token_id)

    def _first_bytes(self, token_ids: list[int]) -> bytes:
        """The first bytes of tokens with which the text may begin."""
        for number, token_id in enumerate(token_ids):
            if self._shown(token_id):
                self._is_first = False
                rest = [self._shown(each) for each in token_ids[number + 1 :]]
                return self._bytes_of.of_first(token_id) + b"".join(rest)
        return b""

    def _end_of(self, token_ids: Sequence[int]) -> bytes:
        """The last bytes, as many as tell whether a character is unfinished."""
        end = b""
        for token_id in reversed(token_ids):
            if len(end) >= _MAX_OPEN_BYTES:
                break
            end = self._shown(token_id) + end
        return end


class WindowDetokenizer:
    """Decodes a short window with and without the new ids, for any other tokenizer.

    What the new ids add is their text. The window gives them their left context.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], behind: Sequence[int] = ()) -> None:
        """`behind`: the ids that come before the first pushed one."""
        self._decode = decode
        num_behind = _NUM_TOKENS_BEHIND
        # Ids without text are no context.
        while num_behind < len(behind) and not decode(behind[-num_behind:]):
            num_behind *= 2
        self._window = list(behind[-num_behind:])
        self._num_read = len(self._window)
        """The number of ids in the window that have been returned as text."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the ids so far end inside a character, as `Detokenizer.is_open` says."""
        return self._is_open

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that no later id can change."""
        self._window += token_ids
        if not token_ids:
            return ""
        # Ends inside a character as long as the decoder puts a replacement there.
        text = self._decode(self._window)
        num_new = len(self._window) - self._num_read
        self._is_open = text.endswith(_REPLACEMENT) and num_new < _MAX_HELD_TOKENS
        return "" if self._is_open else self._advance(text)

    def flush(self) -> str:
        """Return what was held back."""
        self._is_open = False
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        num_shown = len(self._decode(self._window[: self._num_read]))
        if len(text) > num_shown:
            del self._window[: self._num_read]
            self._num_read = len(self._window)
        return text[num_shown:]
