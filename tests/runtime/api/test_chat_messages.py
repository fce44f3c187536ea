"""Earlier calls and what was reasoned before them, as templates take them."""

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


STRICT = (
    "{% for message in messages %}{% if message.tool_calls %}"
    "{% if message.content and message.thinking %}{{ raise_exception('not both') }}{% endif %}"
    "[{{ message.thinking or message.content }}]{% endif %}{% endfor %}"
)
"""A template such as that of gpt-oss: one text of the two."""


def conversation_text(template: str, **said: Any) -> str:
    """What the template makes of a turn that calls."""
    wrapped = byte_level_backend()
    wrapped.chat_template = template
    tokenizer = Tokenizer(wrapped)
    return tokenizer.decode_given(tokenizer.encode_chat([{**turn({"a": 1}), **said}]))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("<{{ message.content }}>", "<>"),
        ("<{{ 'x' if 'y' in message.content else 'z' }}>", "<z>"),
        ("<{{ message.content + 'x' }}>", "<x>"),
        ("<{{ message.content if message.content is defined else '-' }}>", "<->"),
    ],
)
def test_a_turn_without_content_has_none_where_the_template_knows_that(
    template: str, text: str
) -> None:
    within = f"{{% if message.tool_calls %}}{template}{{% endif %}}"
    each = f"{{% for message in messages %}}{within}{{% endfor %}}"
    assert conversation_text(each, content=None) == text


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_has_the_name_that_the_template_knows(name: str) -> None:
    for known in ("reasoning_content", "reasoning", "thinking"):
        template = f"{{% for m in messages %}}{{{{ m.{known} }}}}{{% endfor %}}"
        assert conversation_text(template, **{name: "Hm."}) == "Hm."


def test_content_joins_reasoning_where_the_template_takes_one_of_them() -> None:
    assert conversation_text(STRICT, content="I look.") == "[I look.]"
    assert conversation_text(STRICT, reasoning="Hm.") == "[Hm.]"
    assert conversation_text(STRICT, reasoning="Hm.", content="I look.") == "[Hm.\nI look.]"
    both = "{% for m in messages %}{{ m.thinking }}{{ m.content }}{% endfor %}"
    assert conversation_text(both, reasoning="Hm.", content="I look.") == "Hm.I look."


def test_reasoning_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadRequest, match="Message 0 has 5 for its reasoning_content"):
        conversation_text(STRICT, reasoning=5)


def test_templates_see_no_strict() -> None:
    wrapped = byte_level_backend()
    wrapped.chat_template = "{{ tools | tojson }}"
    tokenizer = Tokenizer(wrapped)
    turns = [{"role": "user", "content": "a"}]
    tool = {"type": "function", "function": {"name": "f", "strict": True}}
    ids = tokenizer.encode_chat(turns, tools=[tool])
    assert tokenizer.decode_given(ids) == '[{"type": "function", "function": {"name": "f"}}]'
    with pytest.raises(BadRequest, match="The tools are 'f'; expected a list of dicts"):
        tokenizer.encode_chat(turns, tools="f")
