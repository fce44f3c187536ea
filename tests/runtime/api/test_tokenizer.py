import itertools
import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raydix.errors import BadRequest, CheckpointError
from raydix.runtime.api.tokenizer import load_tokenizer


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None
    assert load_tokenizer(tmp_path / "absent") is None


def test_a_corrupt_tokenizer_is_a_checkpoint_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_is_a_program_is_refused_without_asking_anybody(tmp_path, monkeypatch):
    def answer(prompt):
        raise AssertionError(prompt)

    monkeypatch.setattr("builtins.input", answer)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k2"}))
    named = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "TikTokenTokenizer", "auto_map": named})
    )
    (tmp_path / "tokenization_kimi.py").write_text("raise AssertionError('it ran')")

    with pytest.raises(CheckpointError, match="cannot be loaded") as refusal:
        load_tokenizer(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_saved_tokenizer_is_loaded(tmp_path, byte_level):
    byte_level._wrapped.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    assert loaded.decode(loaded.encode("hello"), True) == "hello"


def test_chat_uses_the_template_and_asks_for_an_answer(byte_level):
    messages = [{"role": "user", "content": "hell"}]
    assert (
        byte_level.decode(byte_level.encode_chat(messages), False)
        == "<|user|>hell<|end|><|assistant|>"
    )
    without = byte_level.encode_chat(messages, add_generation_prompt=False)
    assert byte_level.decode(without, False) == "<|user|>hell<|end|>"


def test_a_last_message_is_continued_where_that_is_asked_for(byte_level):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "hell"}]
    continued = byte_level.encode_chat(messages, continue_final_message=True)
    assert byte_level.decode(continued, False) == "<|user|>a<|end|><|assistant|>hell"


def test_chat_without_a_template_is_a_bad_request(sentencepiece):
    with pytest.raises(BadRequest, match="no chat template"):
        sentencepiece.encode_chat([{"role": "user", "content": "a"}])


def test_messages_that_the_template_refuses_are_a_bad_request(byte_level):
    with pytest.raises(BadRequest, match="no tools"):
        byte_level.encode_chat([{"role": "tool", "content": "a"}])


@pytest.mark.parametrize(
    "template",
    ["{{ 1 // n }}", "{{ range(10 ** 9 - n) }}", "{{ n.a.b }}", "{% for i in n %}{% endfor %}"],
)
def test_variables_that_the_template_cannot_use_are_a_bad_request(
    byte_level, monkeypatch, template
):
    monkeypatch.setattr(byte_level._wrapped, "chat_template", template)
    with pytest.raises(BadRequest, match="refuses these messages"):
        byte_level.encode_chat([{"role": "user", "content": "a"}], n=0)


def test_what_a_template_says_ends_with_one_full_stop(byte_level, monkeypatch):
    monkeypatch.setattr(byte_level._wrapped, "chat_template", "{{ raise_exception('No user.') }}")
    with pytest.raises(BadRequest, match=r"messages: No user\.$"):
        byte_level.encode_chat([{"role": "system", "content": "a"}])


@pytest.mark.parametrize("part", [{"type": "image", "url": "a.png"}, {"url": "a.png"}, 5])
def test_messages_with_more_than_text_are_a_bad_request(byte_level, part):
    content = [{"type": "text", "text": "What is this?"}, part]
    with pytest.raises(BadRequest, match="expected parts of type 'text' alone"):
        byte_level.encode_chat([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user"}, "Message 1, of role 'user', has no content"),
        ({"role": "user", "content": None}, "Message 1, of role 'user', has no content"),
        ({"content": "hell"}, "Message 1 has no role"),
        ("hell", "Message 1 has no role"),
    ],
)
def test_messages_without_role_or_content_are_a_bad_request(byte_level, message, words):
    with pytest.raises(BadRequest, match=words):
        byte_level.encode_chat([{"role": "user", "content": "a"}, message])


def test_messages_with_half_of_a_surrogate_pair_are_a_bad_request(byte_level):
    with pytest.raises(BadRequest, match="half of a surrogate pair"):
        byte_level.encode_chat([{"role": "user", "content": "a\ud800"}])


def test_messages_that_call_tools_need_no_content(byte_level):
    message = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
    assert byte_level.encode_chat([message])


def test_the_text_parts_of_a_message_are_lines_of_it(byte_level):
    content = [{"type": "text", "text": text} for text in ("hell", "hole")]
    assert byte_level.encode_chat([{"role": "user", "content": content}]) == (
        byte_level.encode_chat([{"role": "user", "content": "hell\nhole"}])
    )


@pytest.mark.parametrize("text", [None, 5, ["a"]])
def test_a_text_part_without_text_is_a_bad_request(byte_level, text):
    with pytest.raises(BadRequest, match="for its text; expected a part such as"):
        byte_level.encode_chat([{"role": "user", "content": [{"type": "text", "text": text}]}])


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@settings(max_examples=100)
@given(token_ids=st.lists(st.integers(0, 275), max_size=20), skips_special=st.booleans())
def test_decode_is_that_of_transformers_without_its_clean_up(
    request, kind, token_ids, skips_special
):
    tokenizer = request.getfixturevalue(kind)
    expected = tokenizer._wrapped.decode(
        token_ids, skip_special_tokens=skips_special, clean_up_tokenization_spaces=False
    )
    # A run of byte tokens that is no text in part is replaced in that part alone.
    assume(kind == "byte_level" or "\N{REPLACEMENT CHARACTER}" not in expected)
    assert tokenizer.decode(token_ids, skips_special) == expected


@pytest.mark.parametrize("text", [5, None, b"a", ["a"], "\ud800"])
def test_what_is_no_text_is_not_encoded(byte_level, text):
    with pytest.raises(BadRequest, match="The text is "):
        byte_level.encode(text)


@pytest.mark.parametrize(
    "token_ids",
    [
        None,
        5,
        "ab",
        b"ab",
        {1: 2},
        itertools.count(),
        np.array(5),
        [True],
        [-1],
        [2**32],
        [5.0],
        ["a"],
        [None],
    ],
)
def test_what_are_no_token_ids_are_not_decoded(byte_level, token_ids):
    with pytest.raises(BadRequest, match=r"expected a list of ints|is no token id"):
        byte_level.decode_given(token_ids)


def test_token_ids_of_anybody_are_decoded(byte_level):
    token_ids = byte_level.encode("hello")
    assert byte_level.decode_given(np.array(token_ids)) == byte_level.decode(token_ids, False)


@pytest.mark.parametrize("messages", [None, 5, "hello", {"role": "user", "content": "a"}])
def test_what_is_no_list_of_messages_is_refused(byte_level, messages):
    with pytest.raises(BadRequest, match=r"^The messages are .*; expected a list of dicts"):
        byte_level.encode_chat(messages)


@pytest.mark.parametrize("content", [5, True, {"a": 1}])
def test_content_that_is_no_text_is_not_written_out(byte_level, content):
    with pytest.raises(BadRequest, match=r"^Message 0, of role 'user', has .*; expected text"):
        byte_level.encode_chat([{"role": "user", "content": content}])
