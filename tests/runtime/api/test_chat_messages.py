"""Arguments of earlier calls, as templates take them."""

import re
from typing import Any

import pytest

from raydix.errors import BadRequest
from raydix.runtime.api.tokenizer import Tokenizer
from tests.runtime.api.small_tokenizers import byte_level_backend

AS_TEXT = "{{ call.function.arguments }}"
AS_TEXT_IF_IT_IS = (
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}"
)
AS_JSON = "{{ call.function.arguments | tojson }}"
BY_NAME = (
    "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }}{% endfor %}"
)


def turn(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}


def written(template: str, arguments: Any) -> str:
    """What the template writes of an earlier call's arguments."""
    wrapped = byte_level_backend()
    wrapped.chat_template = (
        "{% for message in messages %}{% for call in message.tool_calls or [] %}"
        f"{template}{{% endfor %}}{{% endfor %}}"
    )
    tokenizer = Tokenizer(wrapped)
    return tokenizer.decode_given(tokenizer.encode_chat([turn(arguments)]))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (AS_TEXT, '{"a":1}'),
        (AS_TEXT_IF_IT_IS, '{"a":1}'),
        (AS_JSON, '{"a": 1}'),
        (BY_NAME, "a=1"),
    ],
)
def test_arguments_stay_as_generated_where_the_template_lets_them(template: str, text: str) -> None:
    assert written(template, '{"a":1}') == text


@pytest.mark.parametrize("wrong", ["", "{", "[]", "null", "[" * 5000])
def test_arguments_that_are_no_object_are_refused_where_one_is_needed(wrong: str) -> None:
    with pytest.raises(BadRequest, match=re.escape("Message 0, tool_calls.0 has")):
        written(BY_NAME, wrong)
    assert written(AS_TEXT, wrong) == wrong


def test_objects_pass_as_they_are() -> None:
    assert written(AS_JSON, {"a": 1}) == '{"a": 1}'
