from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.api.detokenizer import ByteLevelDetokenizer, WindowDetokenizer

VOCABULARY_SIZES = {"byte_level": 266, "sentencepiece": 275}


def joined(tokenizer, pieces, skips_special):
    detokenizer = tokenizer.detokenizer(skips_special)
    return "".join([*map(detokenizer.push, pieces), detokenizer.flush()])


def id_pieces(kind):
    """Streams of any ids, special, unknown and invalid UTF-8 among them, cut anywhere."""
    return st.lists(st.lists(st.integers(0, VOCABULARY_SIZES[kind]), max_size=4), max_size=12)


@settings(deadline=None, max_examples=400)
@given(pieces=id_pieces("byte_level"), skips_special=st.booleans())
def test_byte_level_deltas_equal_one_decode(byte_level, pieces, skips_special):
    assert joined(byte_level, pieces, skips_special) == byte_level.decode(
        list(chain(*pieces)), skips_special
    )


@settings(deadline=None, max_examples=400)
@given(pieces=id_pieces("sentencepiece"), skips_special=st.booleans())
def test_sentencepiece_deltas_equal_one_decode(sentencepiece, pieces, skips_special):
    assert joined(sentencepiece, pieces, skips_special) == sentencepiece.decode(
        list(chain(*pieces)), skips_special
    )


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@settings(deadline=None, max_examples=100)
@given(text=st.text(max_size=40))
def test_text_survives_the_round_trip_one_id_at_a_time(request, kind, text):
    tokenizer = request.getfixturevalue(kind)
    token_ids = tokenizer.encode(text)
    assert joined(tokenizer, [[each] for each in token_ids], True) == tokenizer.decode(
        token_ids, True
    )


def test_each_kind_of_tokenizer_gets_its_detokenizer(byte_level, sentencepiece):
    assert isinstance(byte_level.detokenizer(True), ByteLevelDetokenizer)
    assert isinstance(sentencepiece.detokenizer(True), WindowDetokenizer)


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


def test_a_run_of_byte_tokens_is_held_back_until_it_ends(sentencepiece):
    detokenizer = sentencepiece.detokenizer(True)
    token_ids = [*sentencepiece.encode("x")[1:], *sentencepiece.encode("a")]
    assert [detokenizer.push([each]) for each in token_ids] == ["", "x a"]


def test_a_lasting_replacement_character_is_released():
    detokenizer = WindowDetokenizer(
        lambda ids: "\N{REPLACEMENT CHARACTER}" * len(ids), frozenset(), frozenset()
    )
    assert len("".join(detokenizer.push([1]) for _ in range(20))) == 16
    assert len(detokenizer.flush()) == 4
