"""Long texts: refused as soon as it is certain, and otherwise tokenised in pieces, as if whole."""

import functools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from raydix.errors import PromptTooLong
from raydix.runtime.api.fair_turns import result_of
from raydix.runtime.api.least_tokens import LeastTokens
from raydix.runtime.api.text_steps import PIECE_CHARACTERS
from raydix.runtime.api.tokenizer import Tokenizer
from tests.runtime.api.trained_tokenizers import drawn_texts, trained_backend

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ALL_KINDS = ("byte_level", "llama", "mistral", "gemma", "llama_3", "phi", "gaps")


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "llama_3":
        backend = trained_backend("byte_level")
        backend.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return Tokenizer(backend)
    if kind == "gaps":
        return Tokenizer(without_some_bytes())
    if kind == "phi":
        backend = trained_backend("llama")
        end = AddedToken("<|end|>", special=True, normalized=False, rstrip=True)
        backend.backend_tokenizer.add_special_tokens([end])
        return Tokenizer(backend)
    return Tokenizer(trained_backend(kind))


def without_some_bytes():
    """A tokenizer like SmolLM2's, which has no token for some bytes: they are lost."""
    backend = trained_backend("byte_level")
    state = json.loads(backend.backend_tokenizer.to_str())
    model = state["model"]
    lost = {"ð", "ġ", "Ĩ", "z", "Ċ"}
    model["vocab"] = {name: i for name, i in model["vocab"].items() if not lost & set(name)}
    model["merges"] = [pair for pair in model["merges"] if not lost & set("".join(pair))]
    return PreTrainedTokenizerFast(
        tokenizer_object=BackendTokenizer.from_str(json.dumps(state)), eos_token="</s>"
    )


def long_texts(seed, number):
    """Some of many pieces; most break nowhere near where a piece would end."""
    rng = random.Random(seed)
    words = drawn_texts(seed, 400)
    for _ in range(number):
        parts = rng.choices(words, k=rng.randint(2, 12) * PIECE_CHARACTERS // 100)
        separator = rng.choice((" ", "", "\n", "</s>", "<|end|>  ", "  "))
        yield separator.join(parts)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_tokens_of_the_pieces_are_those_of_the_whole(kind):
    tokenizer = tokenizer_of(kind)
    backend = tokenizer._wrapped.backend_tokenizer
    for text in long_texts(5, 12):
        assert tokenizer.encode(text) == backend.encode(text).ids
        num_pieces = len(list(tokenizer._text_steps.pieces(text)))
        # Between letters nothing may be lost.
        assert (num_pieces > 1) == (kind != "gaps")
        assert num_pieces <= len(text) / PIECE_CHARACTERS + 1


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_no_text_has_fewer_tokens_than_is_certain(kind):
    tokenizer = tokenizer_of(kind)
    made = [
        "thze " * 90,
        "t\nh\ne\n" * 90,
        " " * 400,
        "\n" * 300,
        "7" * 300,
        "e\u0301" * 200,
        "\u3000" * 50,
        "▁" * 99,
        "🦜" * 80,
    ]
    for text in [*made, *drawn_texts(6, 300), *(f"<|end|>{each}" for each in made)]:
        for normal in {text, text.replace(" ", "\u00a0")}:
            number = len(tokenizer.encode(normal))
            assert not tokenizer._least_tokens.exceed(normal, number)


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma", "gaps"])
@settings(max_examples=300)
@given(text=st.text(max_size=200))
def test_no_text_at_all_has_fewer_tokens_than_is_certain(kind, text):
    tokenizer = tokenizer_of(kind)
    assert not tokenizer._least_tokens.exceed(text, len(tokenizer.encode(text)))


@pytest.mark.parametrize(
    ("kind", "unit"), [("byte_level", "7"), ("llama", "hello"), ("gemma", "e")]
)
def test_a_text_far_too_long_is_refused_before_it_is_tokenised(kind, unit, monkeypatch):
    tokenizer = tokenizer_of(kind)
    tokenizer.encode("a" * PIECE_CHARACTERS * 2)
    monkeypatch.setattr(tokenizer, "_encoded", lambda *_: pytest.fail("it was tokenised"))
    with pytest.raises(PromptTooLong, match="more than 4096 tokens"):
        result_of(tokenizer.encoding(unit * (2 << 20), 4096))


def test_what_is_certain_costs_no_more_than_the_limit(monkeypatch):
    tokenizer = tokenizer_of("byte_level")
    read = []
    least_of = LeastTokens._least_of

    def counted(self, data, start, end):
        read.append(end - start)
        return least_of(self, data, start, end)

    monkeypatch.setattr(LeastTokens, "_least_of", counted)
    assert tokenizer._least_tokens.exceed("word " * (1 << 20), 4096)
    assert sum(read) <= 64 << 10


def test_tokenising_ends_once_there_are_more_tokens_than_the_limit(monkeypatch):
    tokenizer = tokenizer_of("byte_level")
    text = "Hello world " * (PIECE_CHARACTERS // 2)
    number = len(tokenizer.encode(text))
    monkeypatch.setattr(LeastTokens, "exceed", lambda *_: False)
    pieces, encoded = [], tokenizer._encoded
    monkeypatch.setattr(
        tokenizer, "_encoded", lambda piece, **more: pieces.append(piece) or encoded(piece, **more)
    )

    assert len(result_of(tokenizer.encoding(text, number))) == number
    num_pieces = len(pieces)
    pieces.clear()
    with pytest.raises(PromptTooLong):
        result_of(tokenizer.encoding(text, number // 3))
    assert len(pieces) <= num_pieces // 3 + 1


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_what_may_lose_text_is_neither_cut_nor_counted(part):
    backend = trained_backend("byte_level")
    if part == "normalizer":
        backend.backend_tokenizer.normalizer = normalizers.Strip()
    else:
        backend.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = Tokenizer(backend)
    text = "the " * PIECE_CHARACTERS
    assert tokenizer._text_steps is None
    ids = result_of(tokenizer.encoding(text, 10))
    assert ids == tokenizer._wrapped.backend_tokenizer.encode(text).ids


def test_a_tokenizer_whose_tokens_span_words_is_not_cut():
    backend = trained_backend("byte_level")
    backend.backend_tokenizer.add_tokens(["added word"])
    tokenizer = Tokenizer(backend)
    assert not tokenizer._text_steps.can_be_cut
    text = "an added word and " * PIECE_CHARACTERS
    assert tokenizer.encode(text) == tokenizer._wrapped.backend_tokenizer.encode(text).ids
