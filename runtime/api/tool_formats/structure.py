"""Structural tags that let nothing but calls of the tools come where calls are demanded.

A structural tag is JSON of xgrammar's: parts such as constant text, JSON of a schema, one tag of
several. They are made here without the library, which only compilers have.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydix.errors import BadParameter
from raydix.runtime.api.structured_outputs import StructuredOutputs
from raydix.runtime.messages.grammar import TOOL_ARGUMENTS, Grammar, GrammarKind

Part = dict[str, Any]
"""A part of a structural tag."""
ANY_OBJECT = {"type": "object"}
_NAME = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStructure:
    """What is around the arguments of a call, and around all calls."""

    begin: Callable[[str], Part | str]
    """What comes before the arguments of a tool of this name: text, or a part."""
    end: str
    style: str = "json"
    """How arguments are written: JSON, or elements of a kind that xgrammar names."""
    section: tuple[str, str] = ("", "")
    """What is around all calls together."""
    between: str = "\n"
    takes_several: bool = True
    trigger: str | None = None
    """What begins a call, or the section, among free text; None: an answer is `free` or calls."""
    free: Part | None = None
    """An answer without calls, where it is told by its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcedTool:
    """A tool whose calls are enforced."""

    name: str
    schema: Mapping[str, Any]
    """The JSON schema of the arguments."""
    is_strict: bool
    """Whether a schema that cannot be enforced is refused; otherwise any object may come then."""


def demanded_calls(
    structure: CallStructure, tools: Sequence[EnforcedTool], *, is_single: bool
) -> Part:
    """Calls of these tools, one at least, and nothing else."""
    calls = {
        "type": "tags_with_separator",
        "tags": [_call(structure, tool) for tool in tools],
        "separator": structure.between,
        "at_least_one": True,
        "stop_after_first": is_single or not structure.takes_several,
    }
    return _in_section(structure, calls)


def calls_among_text(
    structure: CallStructure, tools: Sequence[EnforcedTool], *, is_single: bool
) -> Part:
    """Free text, in which calls are well formed."""
    if structure.trigger is None:
        assert structure.free is not None, "it has one of both"
        return one_of(demanded_calls(structure, tools, is_single=is_single), structure.free)
    has_section = any(structure.section)
    tags = [_call(structure, tool) for tool in tools]
    if has_section:
        tags = [demanded_calls(structure, tools, is_single=is_single)]
    return {
        "type": "triggered_tags",
        "triggers": [structure.trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": has_section or is_single,
    }


def behind_reasoning(part: Part, end: str, begin: str) -> Part:
    """A part behind reasoning that ends so. `begin`: empty if the prompt has begun it; otherwise
    there may be none.
    """
    reasoning: Part = {
        "type": "tag",
        "begin": begin,
        "content": {"type": "any_text", "excludes": [end]},
        "end": end,
    }
    gap: Part = {"type": "regex", "pattern": "\\n{0,2}"}
    thought = in_sequence(reasoning, gap)
    return in_sequence({"type": "optional", "content": thought} if begin else thought, part)


def in_sequence(*parts: Part) -> Part:
    """Parts, one behind another."""
    return {"type": "sequence", "elements": [*parts]}


def one_of(*parts: Part) -> Part:
    """One of some parts."""
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": [*parts]}


def part_of(grammar: Grammar) -> Part:
    """A grammar as a part of a structural tag."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return {"type": "json_schema", "json_schema": ANY_OBJECT}
        case GrammarKind.JSON_SCHEMA:
            return {"type": "json_schema", "json_schema": json.loads(grammar.text)}
        case GrammarKind.REGEX:
            return {"type": "regex", "pattern": grammar.text}
        case GrammarKind.EBNF:
            return {"type": "grammar", "grammar": grammar.text}
        case GrammarKind.STRUCTURAL_TAG:
            part: Part = json.loads(grammar.text).get("format", {})
            return part


def enforced(part: Part, parameter: str) -> StructuredOutputs:
    """What an output has to be: this part. `parameter`: what the caller calls it."""
    tag = {"type": "structural_tag", "format": part}
    return StructuredOutputs(structural_tag=tag, parameter=parameter)


def _in_section(structure: CallStructure, calls: Part) -> Part:
    begin, end = structure.section
    if not begin and not end:
        return calls
    return {"type": "tag", "begin": begin, "content": calls, "end": end}


def _call(structure: CallStructure, tool: EnforcedTool) -> Part:
    if _NAME.fullmatch(tool.name) is None:
        problem = (
            f"is {tool.name!r:.80}; expected letters, digits, _, . and - to enforce its calls."
        )
        raise BadParameter("tools.function.name", problem)
    begin = structure.begin(tool.name)
    # Whether its schema can be enforced is found out where that takes no time of the server's.
    arguments: Part = {
        "type": TOOL_ARGUMENTS,
        "tool": tool.name,
        "json_schema": tool.schema or ANY_OBJECT,
        "style": structure.style,
        "is_strict": tool.is_strict,
    }
    if isinstance(begin, str):
        return {"type": "tag", "begin": begin, "content": arguments, "end": structure.end}
    return {**begin, "content": in_sequence(begin["content"], arguments), "end": structure.end}
