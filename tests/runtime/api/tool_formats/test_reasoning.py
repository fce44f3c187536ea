"""Reasoning before an answer: what is told of it, in whatever pieces it comes."""

import pytest

from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.answer_parser import AnswerParser
from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallEnded,
    Content,
    Event,
    Reasoning,
)
from raydix.runtime.api.tool_formats.harmony import HARMONY
from raydix.runtime.api.tool_formats.hermes import HERMES
from raydix.runtime.api.tool_formats.kimi import KIMI
from raydix.runtime.api.tool_formats.reasoning import (
    REASONING_FORMATS,
    ReasoningFormat,
    reasoning_format_of,
)
from raydix.runtime.config.policies import ReasoningFormatName
from tests.runtime.api.tool_formats.parsing import parsed

BY_NAME = {each.name: each for each in REASONING_FORMATS}
THINK, KIMI_THINK = BY_NAME[ReasoningFormatName.THINK], BY_NAME[ReasoningFormatName.KIMI]
MISTRAL_THINK = BY_NAME[ReasoningFormatName.MISTRAL]
HARMONY_CHANNELS = BY_NAME[ReasoningFormatName.HARMONY]
WRITES, IS_OPEN = False, True
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)


def called(call_id: str | None = None) -> list[Event]:
    """What is told of either call."""
    return [CallBegun("f", call_id), Arguments("{}"), CallEnded()]


SAMPLES: list[tuple[AnswerFormat, str, list[Event]]] = [
    (AnswerFormat(reasoning=reasoning, is_open=is_open, calls=calls, tools={}), text, events)
    for reasoning, is_open, calls, text, events in [
        (THINK, WRITES, None, "", []),
        (THINK, WRITES, None, " \n", [Content(" \n")]),
        (THINK, WRITES, None, "\nAnswer. <think>", [Content("\nAnswer. <think>")]),
        (
            THINK,
            WRITES,
            None,
            "\n<think>\nHm.\n\nSo.\n</think>\n\nAnswer.\n",
            [Reasoning("Hm.\n\nSo."), Content("Answer.\n")],
        ),
        (THINK, WRITES, None, "<think>\n\n</think>\n\nAnswer.", [Content("Answer.")]),
        (THINK, WRITES, None, "<think>Hm.", [Reasoning("Hm.")]),
        (THINK, IS_OPEN, None, "Hm. </thin", [Reasoning("Hm. </thin")]),
        (THINK, IS_OPEN, None, "Hm.</think>Answer.", [Reasoning("Hm."), Content("Answer.")]),
        (THINK, IS_OPEN, None, "<think>\nHm.</think>a", [Reasoning("Hm."), Content("a")]),
        (THINK, IS_OPEN, None, "</think>a</think>", [Content("a</think>")]),
        (
            THINK,
            IS_OPEN,
            HERMES,
            f"Not {CALL} yet.\n</think>\n\n{CALL}",
            [Reasoning(f"Not {CALL} yet."), *called()],
        ),
        (
            THINK,
            WRITES,
            HERMES,
            f"<think>\nHm.\n</think>\n\nI look.\n{CALL}",
            [Reasoning("Hm."), Content("I look."), *called()],
        ),
        (THINK, WRITES, HERMES, f"\n{CALL}", called()),
        (
            KIMI_THINK,
            WRITES,
            KIMI,
            f"<think> Hm. {KIMI_CALL}",
            [Reasoning(" Hm. "), *called("functions.f:0")],
        ),
        (
            KIMI_THINK,
            WRITES,
            KIMI,
            f"<think>Hm.</think>{KIMI_CALL}",
            [Reasoning("Hm."), *called("functions.f:0")],
        ),
        (
            MISTRAL_THINK,
            WRITES,
            None,
            "[THINK]Hm.[/THINK]Answer.",
            [Reasoning("Hm."), Content("Answer.")],
        ),
        (
            HARMONY_CHANNELS,
            WRITES,
            None,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>a",
            [Reasoning("Hm."), Content("a")],
        ),
        (
            HARMONY_CHANNELS,
            WRITES,
            None,
            "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
            [Content("{}")],
        ),
        (
            HARMONY_CHANNELS,
            WRITES,
            HARMONY,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
            "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
            [Reasoning("Hm."), *called()],
        ),
        (None, WRITES, HERMES, f"<think>\n{CALL}", [Content("<think>"), *called()]),
    ]
]


@pytest.mark.parametrize(("answer_format", "text", "events"), SAMPLES)
def test_samples_say_the_same_wherever_they_are_cut(
    answer_format: AnswerFormat, text: str, events: list[Event]
) -> None:
    assert parsed(answer_format, [text]) == events
    assert parsed(answer_format, text) == events
    for place in range(len(text)):
        assert parsed(answer_format, [text[:place], text[place:]]) == events


def test_reasoning_is_told_as_it_comes() -> None:
    parser = AnswerParser(AnswerFormat(reasoning=THINK, is_open=True, tools={}))
    assert parser.push("Hm.") == [Reasoning("Hm.")]
    assert parser.push("\n") == []
    assert parser.push("So. <") == [Reasoning("\nSo. ")]
    assert parser.push("/think>\nNo") == [Content("No")]


def test_the_edges_of_reasoning_are_told_within_the_piece() -> None:
    parser = AnswerParser(AnswerFormat(reasoning=THINK, tools={}))
    parser.push(" <thi")
    assert parser.edges == []
    parser.push("nk>Hm.")
    assert parser.edges == [len("nk>")]
    parser.push("Hm.</think>\nAnswer.")
    assert parser.edges == [len("Hm.</think>")]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<think>' }}{{ '</think>' }}", ReasoningFormatName.THINK),
        ("{{ '</think><|tool_calls_section_begin|>' }}", ReasoningFormatName.KIMI),
        ("{{ '<|tool_calls_section_begin|>' }}", None),
        ("<|channel|>analysis", ReasoningFormatName.HARMONY),
        ("[THINK][/THINK]", ReasoningFormatName.MISTRAL),
        ("{{ messages }}", None),
        (None, None),
    ],
)
def test_a_format_is_found_by_its_marks(
    template: str | None, name: ReasoningFormatName | None
) -> None:
    found = reasoning_format_of(ReasoningFormatName.AUTO, template)
    assert (found and found.name) == name
    assert reasoning_format_of(ReasoningFormatName.NONE, template) is None


@pytest.mark.parametrize("each", REASONING_FORMATS, ids=lambda each: str(each.name))
def test_a_format_can_be_named(each: ReasoningFormat) -> None:
    assert set(BY_NAME) == set(ReasoningFormatName) - {
        ReasoningFormatName.AUTO,
        ReasoningFormatName.NONE,
    }
    assert reasoning_format_of(each.name, None) is each


def test_a_prompt_or_a_turn_that_began_reasoning_is_seen() -> None:
    assert THINK.is_open("<|assistant|>\n<think>\n")
    assert not THINK.is_open("<think>\n\n</think>\n\n")
    assert not THINK.is_open("what is <think> for?<|assistant|>")
    assert THINK.is_open_in("<think>\nHm")
    assert not THINK.is_open_in("<think>Hm.</think>So")
    assert not THINK.is_open_in("So")
