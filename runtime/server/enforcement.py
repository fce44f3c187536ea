"""What the grammar of an answer demands: calls of tools, and what is told of its form."""

from dataclasses import replace

from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.structured_outputs import StructuredOutputs
from raydix.runtime.api.tool_formats.reasoning import ReasoningFormat
from raydix.runtime.api.tool_formats.structure import (
    EnforcedTool,
    Part,
    behind_reasoning,
    calls_among_text,
    demanded_calls,
    enforced,
    in_sequence,
    one_of,
    part_of,
)
from raydix.runtime.server.answer_reader import AnswerReader
from raydix.runtime.server.conversation import Conversation


def with_enforced_answer(
    params: SamplingParams, reader: AnswerReader | None, conversation: Conversation
) -> SamplingParams:
    """The sampling that lets come what the request demands, behind the reasoning if there is any.

    Raises BadParameter for a tool that cannot be enforced.
    """
    if reader is None:
        return params
    structured = StructuredOutputs.of(params.structured_outputs)
    answer_format = reader.answer_format
    answer = None if structured is None else _answer(structured, answer_format.reasoning)
    calls = answer_format.calls
    part: Part | None = answer
    parameter = "tools" if structured is None else structured.parameter

    if calls is not None:
        structure = calls.structure(reader.tokenizer.tool_template or "")
        tools = _enforced_tools(conversation)
        is_single = conversation.calls.max_calls == 1
        if conversation.calls.must_call:
            part, parameter = demanded_calls(structure, tools, is_single=is_single), "tools"
        elif answer is not None:
            part = one_of(demanded_calls(structure, tools, is_single=is_single), answer)
        elif any(tool.is_strict for tool in tools):
            part = calls_among_text(structure, tools, is_single=is_single)
            if structure.trigger is not None:
                # It is among the text.
                return _sampling(params, part, parameter)
    if part is None or (calls is None and not _has_more(reader)):
        return params
    return _sampling(params, _behind_reasoning(part, reader), parameter)


def _has_more(reader: AnswerReader) -> bool:
    """Whether something stands around an answer without calls."""
    reasoning = reader.answer_format.reasoning
    return reasoning is not None and (reader.answer_format.is_open or bool(reasoning.around))


def _sampling(params: SamplingParams, part: Part, parameter: str) -> SamplingParams:
    return replace(params, structured_outputs=enforced(part, parameter))


def _answer(structured: StructuredOutputs, reasoning: ReasoningFormat | None) -> Part:
    part = part_of(structured.to_grammar())
    begin, end = ("", "") if reasoning is None else reasoning.around_answer
    if not begin:
        return part
    marks: list[Part] = [{"type": "const_string", "value": each} for each in (begin, end)]
    return in_sequence(marks[0], part, marks[1])


def _behind_reasoning(part: Part, reader: AnswerReader) -> Part:
    reasoning = reader.answer_format.reasoning
    if reasoning is None:
        return part
    begin, end = reasoning.around or (reasoning.marks[0], reasoning.marks[-1])
    return behind_reasoning(part, end, "" if reader.answer_format.is_open else begin)


def _enforced_tools(conversation: Conversation) -> list[EnforcedTool]:
    names = conversation.calls.names
    return [
        EnforcedTool(
            name=tool.function.name,
            schema=tool.function.parameters or {},
            is_strict=bool(tool.function.strict),
        )
        for tool in conversation.tools
        if names is None or tool.function.name in names
    ]
