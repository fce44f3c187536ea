"""What a client is told when something is wrong."""

import json
import sys
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from raydix.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineDead,
    Overloaded,
    PromptTooLong,
    RaydixError,
)
from raydix.runtime.server.errors import failure_of, failure_of_validation
from raydix.runtime.server.wire.anthropic import MessagesRequest
from raydix.runtime.server.wire.chat import ChatRequest
from raydix.runtime.server.wire.completions import CompletionRequest
from raydix.runtime.server.wire.responses import ResponsesRequest

TURN = {"role": "user", "content": "a"}


def told(kind: type[BaseModel], body: Any) -> tuple[str, str | None, str | None]:
    """Message, param and code for a body that is refused."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    failed = failure_of_validation(caught.value.errors(), kind.model_fields)
    assert failed.status == 400
    return failed.details.message, failed.details.param, failed.details.code


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BadRequest("no"), 400, None),
        (PromptTooLong("no"), 400, "context_length_exceeded"),
        (Overloaded("no", 2.5), 429, "overloaded"),
        (DeadlineExceeded("no"), 408, "deadline_exceeded"),
        (EngineDead("no"), 503, "engine_unavailable"),
        (RaydixError("no"), 500, None),
    ],
)
def test_each_error_has_its_status(error: RaydixError, status: int, code: str | None) -> None:
    failed = failure_of(error)
    assert (failed.status, failed.details.code) == (status, code)
    assert json.loads(failed.body(""))["error"]["message"] == "no"


def test_overload_tells_when_to_come_again() -> None:
    assert failure_of(Overloaded("no", 2.5)).headers == {
        "Retry-After": "3",
        "Retry-After-Ms": "2500",
    }
    assert failure_of(Overloaded("no", 0.0)).headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (CompletionRequest, {"prompt": "a", "suffix": "b"}, "suffix"),
        (ChatRequest, {"messages": [TURN], "functions": [{}]}, "functions"),
        (ChatRequest, {"messages": [{**TURN, "annotations": [{}]}]}, "messages.0.annotations"),
        (ResponsesRequest, {"input": "a", "previous_response_id": "x"}, "previous_response_id"),
        (ResponsesRequest, {"input": "a", "reasoning": {"budget": 1}}, "reasoning.budget"),
    ],
)
def test_unsupported_fields_are_named(
    kind: type[BaseModel], body: dict[str, Any], field: str
) -> None:
    message, param, code = told(kind, body)
    assert repr(field) in message
    assert (param, code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (CompletionRequest, {}, "prompt"),
        (CompletionRequest, {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        (CompletionRequest, {"prompt": "a", "n": 0}, "n"),
        (CompletionRequest, {"prompt": [[1.5]]}, "prompt"),
        (CompletionRequest, {"prompt": "a", "stop": ["a"] * 65}, "stop"),
        (CompletionRequest, {"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias"),
        (CompletionRequest, {"prompt": "a", "logit_bias": {"1": True}}, "logit_bias"),
        (ChatRequest, {"messages": [TURN], "logit_bias": [1]}, "logit_bias"),
        (ChatRequest, {"messages": [TURN], "prompt_logprobs": True}, "prompt_logprobs"),
        (ChatRequest, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
        (ResponsesRequest, {"input": "a", "metadata": {"a": "\ud800"}}, "metadata.a"),
        (ChatRequest, {"messages": []}, "messages"),
        (ChatRequest, {"messages": [TURN], "store": True}, "store"),
        (ChatRequest, {"messages": [TURN], "modalities": ["audio"]}, "modalities"),
        (CompletionRequest, {"prompt": "a", "best_of": 2}, "best_of"),
        (ChatRequest, {"messages": [{"role": "function", "content": "a"}]}, "messages.0.role"),
        (ResponsesRequest, {"input": "a", "store": True}, "store"),
        (ResponsesRequest, {"input": "a", "background": True}, "background"),
    ],
)
def test_wrong_values_are_named(kind: type[BaseModel], body: dict[str, Any], field: str) -> None:
    message, param, _ = told(kind, body)
    assert param is not None
    assert param.startswith(field)
    assert field in message


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (
            CompletionRequest,
            {"prompt": "a", "stop": ["a"] * 65},
            "stop: List should have at most 64 items after validation, not 65",
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0: Input is of type 'image_url'; expected 'text', as models are "
            "served without images, sound and the like",
        ),
        (
            ResponsesRequest,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0: Input is of type 'input_image'; expected 'text', as models are "
            "served without images, sound and the like",
        ),
        (
            CompletionRequest,
            {"prompt": "a", "stop": 5},
            "stop: Input should be a valid string or a valid list (it is 5)",
        ),
        (
            CompletionRequest,
            {"prompt": "a", "stop": ["a", 5]},
            "stop.1: Input should be a valid string (it is 5)",
        ),
        (
            CompletionRequest,
            {"prompt": [1, "a"]},
            "prompt.1: Input should be a valid integer (it is 'a')",
        ),
        (
            CompletionRequest,
            {"prompt": ["a", 1]},
            "prompt.1: Input should be a valid string (it is 1)",
        ),
        (
            CompletionRequest,
            {"prompt": "a", "n": "redis://me:secret@host/" + "x" * 100},
            f"n: Input should be a valid integer (it is 'redis://...@host/{'x' * 22} ...)",
        ),
        (
            CompletionRequest,
            {"prompt": "a", "n": 0},
            "n: Input should be greater than or equal to 1 (it is 0)",
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content: Input should be a valid string or a valid list (it is 5)",
        ),
        (CompletionRequest, [], "body: Input should be an object (it is a list)"),
        (
            ChatRequest,
            {"messages": [TURN], "response_format": {"type": "json_schema"}},
            "response_format.json_schema: Field required",
        ),
        (
            ChatRequest,
            {
                "messages": [TURN],
                "response_format": {"type": "json_schema", "json_schema": {"name": "x"}},
            },
            "response_format.json_schema.schema: Field required",
        ),
        (
            ResponsesRequest,
            {"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format.schema: Field required",
        ),
        (
            MessagesRequest,
            {
                "messages": [TURN],
                "max_tokens": 1,
                "output_config": {"format": {"type": "json_schema"}},
            },
            "output_config.format.schema: Field required",
        ),
        (
            ChatRequest,
            {"messages": [TURN], "response_format": {"type": "json"}},
            "response_format: Input should be an object of type 'text', 'json_object', "
            "'json_schema', 'structural_tag' (it is of type 'json')",
        ),
        (
            ResponsesRequest,
            {"input": "a", "text": {"format": {"type": "json_schema", "schema": 5}}},
            "text.format.schema: Input should be a valid dictionary (it is 5)",
        ),
        (ChatRequest, {"messages": ["a"]}, "messages.0: Input should be an object (it is 'a')"),
    ],
)
def test_of_a_value_with_several_types_what_is_wrong_is_told(
    kind: type[BaseModel], body: Any, message: str
) -> None:
    assert told(kind, body)[0] == message


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"messages": [TURN], "tools": [], "modalities": ["text"]}),
        (ChatRequest, {"messages": [TURN], "safety_identifier": "someone"}),
        (ResponsesRequest, {"input": "a", "tools": [], "include": []}),
        (CompletionRequest, {"prompt": "a", "best_of": 1}),
    ],
)
def test_values_that_ask_for_nothing_are_taken(kind: type[BaseModel], body: dict[str, Any]) -> None:
    kind.model_validate(body)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_token", "Not supported: 'max_token' (did you mean 'max_tokens'?). Leave out"),
        ("colour", "Not supported: 'colour'. Leave out"),
        ("max_tokens" * 20, f"Not supported: '{'max_tokens' * 20}'. Leave out"),
    ],
)
def test_an_unknown_field_is_told_with_the_one_that_was_probably_meant(
    name: str, words: str
) -> None:
    message, param, code = told(ChatRequest, {"messages": [TURN], name: 1})

    assert message.startswith(words)
    assert (param, code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (
            ChatRequest,
            {"messages": [TURN], "response_format": {"type": "json_schema", "schema": {}}},
            "response_format.json_schema: Field required. Not supported: 'response_format.schema'.",
        ),
        (
            ResponsesRequest,
            {"input": "a", "text": {"format": {"type": "json_schema", "json_schema": {}}}},
            "text.format.schema: Field required. Not supported: 'text.format.json_schema'.",
        ),
        (
            CompletionRequest,
            {"promt": "a", "n": "x"},
            "prompt: Field required. Not supported: 'promt' (did you mean 'prompt'?).",
        ),
        (
            MessagesRequest,
            {"prompt": "a"},
            "messages: Field required; max_tokens: Field required. Not supported: 'prompt'.",
        ),
    ],
)
def test_a_missing_field_is_named_before_the_unknown_one_that_was_given_instead(
    kind: type[BaseModel], body: dict[str, Any], message: str
) -> None:
    text, param, code = told(kind, body)

    assert text == f"{message} Leave out what is named."
    assert (param, code) == (message.partition(":")[0], None)


def test_null_is_as_good_as_absent() -> None:
    assert ChatRequest.model_validate({"messages": [TURN], "tools": None, "n": None}).n == 1


def test_a_message_that_quotes_no_unicode_can_be_told() -> None:
    errors = [{"type": "extra_forbidden", "loc": ("\ud800",), "msg": "no"}]
    body = failure_of_validation(errors, ()).body("")
    assert json.loads(body)["error"]["message"] == "Not supported: 'body'. Leave out what is named."
    assert failure_of(BadRequest("It says \ud800.")).body("").isascii()


def num_steps(errors: list[dict[str, Any]]) -> int:
    """The calls that it takes to tell of some errors."""
    steps: list[str] = []
    sys.setprofile(lambda _, event, __: steps.append(event))
    try:
        failure_of_validation(errors, ())
    finally:
        sys.setprofile(None)
    return len(steps)


@pytest.mark.parametrize("kind", ["literal_error", "string_type"])
def test_many_errors_take_as_much_longer_as_they_are_more(kind: str) -> None:
    def errors(number: int) -> list[dict[str, Any]]:
        each = {"type": kind, "msg": "Input should be 'a'", "input": 5}
        return [{**each, "loc": ("kinds", index, "str")} for index in range(number)]

    assert num_steps(errors(1600)) < 5 * num_steps(errors(400))


def test_what_is_wrong_is_told_in_words_of_its_kind() -> None:
    [message, *_] = told(CompletionRequest, {"prompt": "a", "cache_salt": ""})
    assert message.startswith("cache_salt: Value should have at least 1 character ")
    [message, *_] = told(ChatRequest, {"messages": [TURN] * 16_385})
    assert message == "messages: It has 16385 messages; expected at most 16384."
    [message, *_] = told(ChatRequest, {"messages": []})
    assert message.startswith("messages: List should have at least 1 item ")
