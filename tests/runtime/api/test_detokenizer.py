from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.api.detokenizer import ByteDetokenizer, WindowDetokenizer
from raydix.runtime.api.tokenizer import Tokenizer
from tests.runtime.api.small_tokenizers import word_piece_backend

VOCABULARY_SIZES = {"byte_level": 266, "sentencepiece": 275}


def joined(tokenizer, pieces, skips_special):
    detokenizer = tokenizer.detokenizer(skips_special)
    return "".join([*map(detokenizer.push, pieces), detokenizer.flush()])


def id_pieces(kind):
    """Streams of any ids, special, unknown and invalid UTF-8 among them, cut anywhere."""
    return st.lists(st.lists(st.integers(0, VOCABULARY_SIZES[kind]), max_size=4), max_size=12)


@settings(max_examples=400)
@given(pieces=id_pieces("byte_level"), skips_special=st.booleans())
def test_byte_level_deltas_equal_one_decode(byte_level, pieces, skips_special):
    assert joined(byte_level, pieces, skips_special) == byte_level.decode(
        list(chain(*pieces)), skips_special
    )


@settings(max_examples=400)
@given(pieces=id_pieces("sentencepiece"), skips_special=st.booleans())
def test_sentencepiece_deltas_equal_one_decode(sentencepiece, pieces, skips_special):
    assert joined(sentencepiece, pieces, skips_special) == sentencepiece.decode(
        list(chain(*pieces)), skips_special
    )


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@settings(max_examples=100)
@given(text=st.text(max_size=40))
def test_text_survives_the_round_trip_one_id_at_a_time(request, kind, text):
    tokenizer = request.getfixturevalue(kind)
    token_ids = tokenizer.encode(text)
    assert joined(tokenizer, [[each] for each in token_ids], True) == tokenizer.decode(
        token_ids, True
    )


def test_each_kind_of_tokenizer_gets_its_detokenizer(byte_level, sentencepiece):
    assert isinstance(byte_level.detokenizer(True), ByteDetokenizer)
    assert isinstance(sentencepiece.detokenizer(True), ByteDetokenizer)
    words = Tokenizer(word_piece_backend())
    assert isinstance(words.detokenizer(True), WindowDetokenizer)


@settings(max_examples=200)
@given(pieces=st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=8), cut=st.integers(0, 8))
def test_deltas_of_any_other_kind_are_what_the_ids_add_to_the_prompt(pieces, cut):
    words = Tokenizer(word_piece_backend())
    prompt, output = list(chain(*pieces[:cut])), pieces[cut:]
    detokenizer = words.detokenizer(False, prompt)
    text = "".join([*map(detokenizer.push, output), detokenizer.flush()])
    assert words.decode(prompt, False) + text == words.decode([*prompt, *chain(*output)], False)


def test_an_unfinished_character_is_held_back(byte_level):
    first, *rest = byte_level.encode("é€")
    detokenizer = byte_level.detokenizer(True)
    assert [detokenizer.push([first]), *(detokenizer.push([each]) for each in rest)] == [
        "",
        "é",
        "",
        "",
        "€",
    ]


def test_a_character_of_byte_tokens_is_told_once_it_is_whole(sentencepiece):
    detokenizer = sentencepiece.detokenizer(True)
    token_ids = [*sentencepiece.encode("x€")[1:], *sentencepiece.encode("a")]
    told = [(detokenizer.push([each]), detokenizer.is_open) for each in token_ids]
    assert told == [("x", False), ("", True), ("", True), ("€", False), (" a", False)]


def test_a_lasting_replacement_character_is_released():
    detokenizer = WindowDetokenizer(lambda ids: "\N{REPLACEMENT CHARACTER}" * len(ids))
    assert len("".join(detokenizer.push([1]) for _ in range(20))) == 16
    assert len(detokenizer.flush()) == 4
