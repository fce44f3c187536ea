import numpy as np
import pytest

from raydix.errors import BadRequest, PromptTooLong
from raydix.runtime.api.prompts import (
    ChatPrompt,
    TextPrompt,
    TokenPrompt,
    check_token_ids,
    read_prompt,
)


def test_each_shape_is_read():
    assert read_prompt("hi") == read_prompt({"prompt": "hi"}) == TextPrompt("hi")
    assert read_prompt([1, 2]) == read_prompt({"prompt_token_ids": [1, 2]}) == TokenPrompt([1, 2])


def test_a_conversation_is_read_with_the_variables_of_its_template():
    messages = [{"role": "user", "content": "hi"}]
    variables = {"enable_thinking": False}
    given = {"messages": messages, "chat_template_kwargs": variables}
    assert read_prompt({"messages": messages}) == ChatPrompt(messages, {})
    assert read_prompt(given) == ChatPrompt(messages, variables)
    tools = [{"type": "function", "function": {"name": "f"}}]
    with_tools = ChatPrompt(messages, {**variables, "tools": tools})
    assert read_prompt({**given, "tools": tools}) == with_tools
    assert read_prompt({**given, "tools": []}) == ChatPrompt(messages, variables)


@pytest.mark.parametrize(
    "prompt",
    [
        3,
        None,
        b"hi",
        {},
        {"prompt": 3},
        {"prompt_token_ids": "hi"},
        {"prompt": "a", "prompt_token_ids": [1]},
        {"messages": [], "prompt": "a"},
        {"chat_template_kwargs": {}},
    ],
)
def test_another_shape_is_a_bad_request(prompt):
    with pytest.raises(BadRequest, match="expected a str, a list of token ids"):
        read_prompt(prompt)


def test_messages_without_their_name_are_told_from_token_ids():
    with pytest.raises(BadRequest, match=r"list of messages; .*'messages': .*or call chat"):
        read_prompt([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([], "empty"),
        ([1, 10], "token id 10; expected ids from 0 to 9"),
        ([1, -1], "token id -1"),
        ([1.5], "float64"),
        ([1, 1.5], "float64"),
        ([1, [2]], "no flat list"),
        ([1, np.array([2])], "no flat list"),
        ([1, "a"], "expected a list of ints"),
        ([True], "bool"),
        ([[1, 2]], "2 dimensions"),
        ([1, 2**70], f"token id {2**70}; expected ids from 0"),
        ([[1], [1, 2]], "no flat list"),
        (["a"], "expected a list of ints"),
    ],
)
def test_ids_that_the_model_does_not_have_are_refused(token_ids, message):
    with pytest.raises(BadRequest, match=message):
        check_token_ids(token_ids, vocab_size=10, max_model_len=100)


def test_a_prompt_must_leave_room_for_one_token():
    assert len(check_token_ids([1] * 7, vocab_size=10, max_model_len=8)) == 7
    with pytest.raises(
        PromptTooLong, match=r"8 tokens; expected at most 7.* the pages of cache\.l1"
    ):
        check_token_ids([1] * 8, vocab_size=10, max_model_len=8)


def test_a_prompt_that_is_too_long_is_never_copied():
    with pytest.raises(PromptTooLong, match="1000000000000 tokens; expected at most 7"):
        check_token_ids(range(10**12), vocab_size=10, max_model_len=8)


def test_ids_become_int32():
    array = check_token_ids(np.array([1, 2], dtype=np.int64), vocab_size=10, max_model_len=8)
    assert array.dtype == np.int32
    assert array.tolist() == [1, 2]


@pytest.mark.parametrize(
    "token_ids", [[1, 2], (1, 2), [np.int64(1), 2], [1, np.int32(2)], range(1, 3)]
)
def test_ids_come_in_any_sequence_of_ints(token_ids):
    assert check_token_ids(token_ids, vocab_size=10, max_model_len=8).tolist() == [1, 2]
