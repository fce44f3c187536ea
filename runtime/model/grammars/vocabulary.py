"""What the tokens of a model say, as grammars are compiled and read with it.

The library of grammars is imported when it is used: it takes seconds, and is optional.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from raydix.errors import CheckpointError
from raydix.runtime.model.grammars.matcher import Words

_WORD_BITS = 32
_ENDS_OF_MESSAGES = ("<|call|>", "<|return|>")
"""Ends of an output that a grammar of gpt-oss writes itself: none that it may not contain."""


class _Told(msgspec.Struct, frozen=True):
    """The content of a vocabulary on its way."""

    info: str
    special_ids: tuple[int, ...]


class CompiledContent(msgspec.Struct, frozen=True):
    """The content of a compiled grammar on its way."""

    grammar: str
    takes_special: bool
    """Whether tokens with a meaning of their own may stand in the text."""


class Vocabulary:
    """What tokens say, and which of them are special."""

    def __init__(self, info: Any, special_ids: Sequence[int]) -> None:
        """`special_ids`: those that no text of a plain grammar contains."""
        import xgrammar

        # Its own threads cost more than they save, and hide what a row takes.
        self._batch = xgrammar.BatchGrammarMatcher(1)
        self.info = info
        """The `TokenizerInfo` of xgrammar."""
        self.num_words = -(-info.vocab_size // _WORD_BITS)
        self._end_ids = frozenset(info.stop_token_ids)
        self._special_ids = tuple(special_ids)
        is_plain = np.ones(self.num_words * _WORD_BITS, dtype=np.bool_)
        is_plain[[*special_ids]] = False
        is_plain[info.vocab_size :] = False
        self._plain_words_W = np.packbits(is_plain, bitorder="little").view(np.int32)

    @property
    def content(self) -> bytes:
        """The vocabulary as it travels."""
        return msgspec.msgpack.encode(
            _Told(info=self.info.serialize_json(), special_ids=self._special_ids)
        )

    @classmethod
    def of(cls, content: bytes) -> "Vocabulary":
        """What `content` has told."""
        import xgrammar

        told = msgspec.msgpack.decode(content, type=_Told)
        info = xgrammar.TokenizerInfo.deserialize_json(told.info)
        return cls(info, told.special_ids)

    def matcher(self, content: bytes, token_ids: Sequence[int] = ()) -> "XgrammarMatcher":
        """A matcher of a compiled grammar, behind these tokens."""
        return self.matcher_of(self.grammar(content), token_ids)

    def grammar(self, content: bytes) -> "ReadGrammar":
        """A compiled grammar, from its content."""
        import xgrammar

        told = msgspec.msgpack.decode(content, type=CompiledContent)
        compiled = xgrammar.CompiledGrammar.deserialize_json(told.grammar, self.info)
        return ReadGrammar(compiled, told.takes_special)

    def matcher_of(self, grammar: "ReadGrammar", token_ids: Sequence[int]) -> "XgrammarMatcher":
        """A matcher of a grammar, behind these tokens."""
        import xgrammar

        made = XgrammarMatcher(
            xgrammar.GrammarMatcher(grammar.compiled),
            grammar.takes_special,
            self._end_ids,
        )
        for token_id in token_ids:
            made.advance(token_id)
        return made

    def fill(self, matchers: Sequence["XgrammarMatcher"], words_MW: Words) -> None:
        """Set in each matcher's row the bits of the tokens that may come next, and of no other.

        The library is called once for all: for a row alone the call is half of what it takes.
        """
        live = [row for row, each in enumerate(matchers) if not each.is_over]
        self._batch.batch_fill_next_token_bitmask(
            [matchers[row].wrapped for row in live], words_MW, live
        )
        for row, matcher in enumerate(matchers):
            if matcher.is_over:
                words_MW[row] = -1
        plain = [row for row in live if not matchers[row].takes_special]
        if len(plain) == len(words_MW):
            words_MW &= self._plain_words_W
        elif plain:
            words_MW[plain] &= self._plain_words_W


class ReadGrammar:
    """A compiled grammar in the library's own form."""

    def __init__(self, compiled: Any, takes_special: bool) -> None:
        self.compiled = compiled
        self.takes_special = takes_special


class XgrammarMatcher:
    """A `Matcher` by xgrammar, which is called as seldom as can be: a call takes microseconds."""

    def __init__(self, wrapped: Any, takes_special: bool, end_ids: frozenset[int]) -> None:
        """`end_ids`: the tokens by which an output ends."""
        self.wrapped = wrapped
        """The library's own."""
        self.takes_special = takes_special
        """Whether tokens with a meaning of their own may come."""
        self._end_ids = end_ids
        self.is_over = False
        """Whether the output has ended, or has left the grammar."""

    def advance(self, token_id: int) -> None:
        """Take the next token of the output."""
        # Behind the end there is one more token at most: a step that was planned ahead.
        if self.is_over:
            return
        is_taken = self.wrapped.accept_token(token_id)
        is_end = token_id in self._end_ids and self.wrapped.is_terminated()
        self.is_over = is_end or not is_taken


def read_vocabulary(folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    """The vocabulary of a model's tokenizer. Raises CheckpointError, ImportError."""
    import xgrammar
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder} has none that can be loaded ({type(error).__name__}: {reason:.200})."
        ) from error
    return vocabulary_of(xgrammar, tokenizer, vocab_size, eos_token_ids)


def vocabulary_of(
    library: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int]
) -> Vocabulary:
    """The vocabulary of a transformers tokenizer."""
    known = len(tokenizer)
    ends = [each for each in eos_token_ids if each < min(vocab_size, known)]
    plain_ends = [
        each for each in ends if tokenizer.convert_ids_to_tokens(each) not in _ENDS_OF_MESSAGES
    ]
    info = library.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocab_size, stop_token_ids=plain_ends or ends or None
    )
    special = {
        token_id
        for token_id, each in tokenizer.added_tokens_decoder.items()
        if each.special and token_id < vocab_size
    }
    return Vocabulary(info, sorted(special - {*info.stop_token_ids}))
