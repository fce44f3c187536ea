"""Random ways through compiled grammars, as models of random weights would take them."""

import functools
import random

import numpy as np

from raydix.runtime.messages.grammar import Grammar
from raydix.runtime.model.grammars.compiling import Compiler
from raydix.runtime.model.grammars.vocabulary import Vocabulary

_PIECES = (b"true", b'{"', b'": ', b'", "', b'"}', b"}]", b'": {"', b"</", b"\n<", b"</think>")
_WORDS = [bytes([byte]) for byte in range(256)] + [b"<eos>", *_PIECES]
_END = 256
_ENDING, _OFTEN = frozenset(b'"}]<>\n'), frozenset(b",:0123456789/")
"""Bytes that bring texts to their end, or are part of numbers: they are drawn more often."""


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """All bytes, some longer pieces, and an end."""
    import xgrammar

    info = xgrammar.TokenizerInfo(
        _WORDS,
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=len(_WORDS),
        stop_token_ids=[_END],
    )
    return Vocabulary(info, ())


@functools.cache
def compiler() -> Compiler:
    """The real compiler, for these words."""
    return Compiler(byte_vocabulary())


def walk(grammar: Grammar, seed: int, max_tokens: int = 4000) -> bytes | None:
    """An output of a grammar, drawn token by token; None: it has not come to its end."""
    vocabulary = byte_vocabulary()
    matcher = vocabulary.matcher(compiler().compile(grammar))
    draw = random.Random(seed)
    words = np.zeros(vocabulary.num_words, dtype=np.int32)
    text = b""
    for _ in range(max_tokens):
        vocabulary.fill([matcher], words.reshape(1, -1))
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(_WORDS)]
        allowed = np.flatnonzero(bits).tolist()
        assert allowed, f"nothing may follow {text!r}"
        weights = [
            30 if each in _ENDING or each == len(_WORDS) - 1 else 3 if each in _OFTEN else 1
            for each in allowed
        ]
        [token_id] = draw.choices(allowed, weights)
        if _END in allowed and (len(allowed) == 1 or draw.random() < 0.5):
            return text
        matcher.advance(token_id)
        if token_id == _END:
            return text
        text += _WORDS[token_id]
    return None
