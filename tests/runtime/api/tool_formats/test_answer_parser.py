"""Every format: what a text says does not depend on the pieces in which it comes."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.answer_parser import AnswerParser
from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallEnded,
    Event,
)
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import is_object
from raydix.runtime.api.tool_formats.table import TOOL_FORMATS, tool_format_of
from raydix.runtime.api.tool_formats.tool_format import ToolFormat
from raydix.runtime.config.policies import ToolFormatName
from tests.runtime.api.tool_formats import parsing
from tests.runtime.api.tool_formats.samples import SAMPLES, TOOLS

BY_NAME = {each.name: each for each in TOOL_FORMATS}
TAGGED = {ToolFormatName.GLM, ToolFormatName.QWEN_CODER}


def parsed(tool_format: ToolFormat, pieces: Iterable[str]) -> list[Event]:
    """What the pieces say to whoever may call these tools."""
    return parsing.parsed(AnswerFormat(calls=tool_format, tools=TOOLS), pieces)


def test_every_format_has_samples() -> None:
    assert {name for name, *_ in SAMPLES} == set(BY_NAME)
    assert set(BY_NAME) == set(ToolFormatName) - {ToolFormatName.AUTO}


@pytest.mark.parametrize(("name", "text", "events"), SAMPLES)
def test_samples_say_the_same_wherever_they_are_cut(
    name: ToolFormatName, text: str, events: list[Event]
) -> None:
    assert parsed(BY_NAME[name], [text]) == events
    assert parsed(BY_NAME[name], text) == events
    for place in range(len(text)):
        assert parsed(BY_NAME[name], [text[:place], text[place:]]) == events


@pytest.mark.parametrize("tool_format", TOOL_FORMATS, ids=lambda each: str(each.name))
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_text_says_the_same_in_any_pieces(tool_format: ToolFormat, data: st.DataObject) -> None:
    own = [text for name, text, _ in SAMPLES if name is tool_format.name]
    text = data.draw(st.sampled_from(own)) + data.draw(st.sampled_from(own))
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 12))
    put_in = data.draw(st.text('{}[]"\\<>|:;,1 \n', max_size=3))
    text = text[:start] + put_in + text[start + length :]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert parsed(tool_format, pieces) == parsed(tool_format, [text])


@pytest.mark.parametrize(("name", "text", "events"), SAMPLES)
def test_a_long_answer_is_read_in_short_pieces(
    name: ToolFormatName, text: str, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    come: list[int] = []
    add = Incoming.add

    def count(incoming: Incoming, piece: str) -> None:
        add(incoming, piece)
        come.append(len(incoming.rest))

    monkeypatch.setattr(Incoming, "add", count)
    long = "".join(f"{text} \n{'x' * (4090 + number)}" for number in range(12))

    whole = parsed(BY_NAME[name], [long])

    assert max(come) < 2 * 4096
    pieces = [long[place : place + 37] for place in range(0, len(long), 37)]
    assert parsed(BY_NAME[name], pieces) == whole


def test_arguments_are_told_as_they_come() -> None:
    parser = AnswerParser(AnswerFormat(calls=BY_NAME[ToolFormatName.HERMES], tools=TOOLS))
    parser.push('<tool_call>\n{"name": "weather", "arguments": ')
    assert parser.push('{"city": "Bo') == [CallBegun("weather"), Arguments('{"city": "Bo')]
    assert parser.push('nn"}') == [Arguments('nn"}')]
    assert parser.push("}\n</tool_call") == []
    assert parser.push(">") == [CallEnded()]


@pytest.mark.parametrize(("name", "text", "events"), SAMPLES)
def test_arguments_of_whole_calls_are_objects(
    name: ToolFormatName, text: str, events: list[Event]
) -> None:
    told = parsed(BY_NAME[name], [text])
    whole = [before for before, after in itertools.pairwise(told) if isinstance(after, CallEnded)]
    assert all(isinstance(each, Arguments) and is_object(each.text) for each in whole)
    assert len(whole) == events.count(CallEnded())


@pytest.mark.parametrize("each", TOOL_FORMATS, ids=lambda each: str(each.name))
def test_a_format_is_found_by_its_mark_or_named(each: ToolFormat) -> None:
    # Templates of several formats have the outer mark of Hermes, too.
    template = f"<tool_call>{each.template_mark}" if each.name in TAGGED else each.template_mark
    assert tool_format_of(ToolFormatName.AUTO, template) is each
    assert tool_format_of(each.name, None) is each
    assert tool_format_of(ToolFormatName.AUTO, "{{ messages }}") is None
