"""A compiler of grammars for the vocabulary of one model.

What it takes, in time and memory, is bounded by the process that it is in.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from raydix.errors import BadRequest
from raydix.runtime.messages.grammar import TOOL_ARGUMENTS, Grammar, GrammarKind
from raydix.runtime.model.grammars.locating import (
    Part,
    formats_in,
    is_refused,
    locate,
    schemas_in,
)
from raydix.runtime.model.grammars.regexes import check_regex
from raydix.runtime.model.grammars.schema_check import (
    enforceable,
    enforceable_arguments,
    enforceable_part,
)
from raydix.runtime.model.grammars.schema_merging import MAX_DEPTH
from raydix.runtime.model.grammars.schema_strings import NotEnforced
from raydix.runtime.model.grammars.vocabulary import CompiledContent, Vocabulary

MAX_CONTENT_BYTES = 8 << 20
"""The largest compiled grammar: it travels to GPU actors, and is kept there."""
_TRIED_TOKENS = 32
_MAX_TOKEN_S = 0.005
"""The mean time of a processor that the next mask may take: steps wait for it."""
_MAX_BLANKS = 2
"""The most blanks between two parts of JSON in a structural tag."""
_OF_LINE = re.compile(r"(?:EBNF \w+ error at line \d+, column \d+|Regex parsing error at[^:]*): ")
_KIND_NAMES = {
    GrammarKind.JSON_OBJECT: "grammar of JSON objects",
    GrammarKind.JSON_SCHEMA: "schema",
    GrammarKind.EBNF: "grammar",
    GrammarKind.STRUCTURAL_TAG: "structural tag",
}
_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerSetup:
    """What a compiler starts with."""

    model_path: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class Compiler:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._vocabulary = vocabulary
        self._library = xgrammar
        # Content is kept by who asked.
        self._compiler = xgrammar.GrammarCompiler(
            vocabulary.info, max_threads=1, cache_enabled=False
        )

    def compile(self, grammar: Grammar) -> bytes:
        """The content of the compiled grammar. Raises BadRequest, which says what is wrong."""
        try:
            compiled = self._compile(grammar).serialize_json()
        except NotEnforced as error:
            raise BadRequest(f"cannot be enforced: {error}") from error
        except (RuntimeError, ValueError, TypeError, RecursionError, MemoryError) as error:
            raise BadRequest(f"cannot be compiled: {self._told(grammar, error)}") from error
        content = msgspec.msgpack.encode(
            CompiledContent(
                grammar=compiled,
                takes_special=grammar.kind is GrammarKind.STRUCTURAL_TAG,
            )
        )
        if len(content) > MAX_CONTENT_BYTES:
            raise BadRequest(
                f"has a grammar that takes {len(content)} bytes once compiled; expected at most "
                f"{MAX_CONTENT_BYTES}. Make it smaller"
            )
        self._try(content)
        return content

    def _compile(self, grammar: Grammar) -> Any:
        text = grammar.text
        match grammar.kind:
            case GrammarKind.JSON_OBJECT:
                return self._compiler.compile_json_schema(_ANY_OBJECT, any_whitespace=False)
            case GrammarKind.JSON_SCHEMA:
                schema = json.dumps(enforceable(_parsed(text)), allow_nan=False)
                return self._compiler.compile_json_schema(schema, any_whitespace=False)
            case GrammarKind.REGEX:
                check_regex(text)
                return self._compiler.compile_regex(text)
            case GrammarKind.EBNF:
                return self._compiler.compile_grammar(text)
            case GrammarKind.STRUCTURAL_TAG:
                tag = json.dumps(_enforceable_tag(_parsed(text), ""), allow_nan=False)
                return self._compiler.compile_structural_tag(tag)

    def _told(self, grammar: Grammar, error: Exception) -> str:
        """What is wrong with a grammar, and where."""
        reason, is_of_size = _reason(error), isinstance(error, MemoryError | RecursionError)
        match grammar.kind:
            case GrammarKind.REGEX:
                return f"the regular expression {grammar.text!r:.80}: {_without_line(reason)}"
            case GrammarKind.JSON_SCHEMA if not is_of_size:
                place = self._fault_in_schema("", _parsed(grammar.text), reason)
                return f"{_without_line(reason)} at {place or '#'}"
            case GrammarKind.STRUCTURAL_TAG if not is_of_size:
                place = self._fault_in_tag(grammar, reason) or "#"
                is_grammar = place.endswith("/grammar")
                return f"{reason if is_grammar else _without_line(reason)} at {place}"
            case _:
                return f"the {_KIND_NAMES[grammar.kind]}: {reason}"

    def _fault_in_schema(self, place: str, root: Any, reason: str) -> str:
        """The place of what is wrong with a schema that stands at `place`."""

        def fails(part: Part) -> bool:
            return is_refused(lambda: self._converted(enforceable_part(root, part[1], part[0])))

        if not fails(("", root)):
            return place
        within, schema = locate(("", root), schemas_in(root), fails)
        is_of_pattern = (
            isinstance(schema, dict) and "pattern" in schema and _OF_LINE.match(reason) is not None
        )
        return place + within + ("/pattern" if is_of_pattern else "")

    def _converted(self, schema: Any) -> Any:
        text = json.dumps(schema, allow_nan=False)
        return self._library.Grammar.from_json_schema(text, any_whitespace=False)

    def _fault_in_tag(self, grammar: Grammar, reason: str) -> str:
        """The place of what is wrong with a structural tag."""

        def fails(part: Part) -> bool:
            given = {"type": "tag", **part[1]} if isinstance(part[1], dict) else part[1]
            tag = {"type": "structural_tag", "format": _enforceable_tag(given, part[0])}
            text = json.dumps(tag, allow_nan=False)
            return is_refused(lambda: self._library.Grammar.from_structural_tag(text))

        whole = _parsed(grammar.text)
        if "format" not in whole or not fails(("/format", whole["format"])):
            return ""
        place, part = locate(("/format", whole["format"]), formats_in, fails)
        match part.get("type") if isinstance(part, dict) else None:
            case "json_schema" | "tool_arguments":
                own = f"{place}/json_schema"
                return self._fault_in_schema(own, part.get("json_schema"), reason)
            case "regex":
                return f"{place}/pattern"
            case "grammar":
                return f"{place}/grammar"
        return place

    def _try(self, content: bytes) -> None:
        """Follow the grammar for some tokens. Raises BadRequest if it is slow, or allows none."""
        matcher = self._vocabulary.matcher(content)
        words_MW = np.zeros((1, self._vocabulary.num_words), dtype=np.int32)
        draw = np.random.default_rng(0)
        began_s = time.process_time()
        num_tokens = 0
        for _ in range(_TRIED_TOKENS):
            if matcher.is_over:
                break
            self._vocabulary.fill([matcher], words_MW)
            bits = np.unpackbits(words_MW[0].view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: self._vocabulary.info.vocab_size])
            if not len(allowed):
                raise BadRequest("has a grammar after which no token of the model may come")
            matcher.advance(int(draw.choice(allowed)))
            num_tokens += 1
        mean_s = (time.process_time() - began_s) / max(1, num_tokens)
        if mean_s > _MAX_TOKEN_S:
            raise BadRequest(
                f"has a grammar that takes {mean_s * 1000:.0f} ms for each token; expected at most "
                f"{_MAX_TOKEN_S * 1000:g} ms. Make it less ambiguous"
            )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"is no JSON: {_reason(error)}") from error


def _enforceable_tag(part: Any, place: str) -> Any:
    """What stands at a place of a structural tag, with schemas that demand only what is enforced.

    Raises BadRequest.
    """
    if place.count("/") > MAX_DEPTH:
        raise BadRequest(f"is nested deeper than {MAX_DEPTH}")
    if isinstance(part, list):
        return [_enforceable_tag(each, f"{place}/{index}") for index, each in enumerate(part)]
    if not isinstance(part, dict):
        return part
    if part.get("type") == TOOL_ARGUMENTS:
        return _arguments(part)
    if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
        check_regex(part["pattern"])
    is_schema = part.get("type") == "json_schema"
    if is_schema:
        # Otherwise blanks could go on for ever.
        part = {"max_whitespace_cnt": _MAX_BLANKS, **part}
    return {
        name: _enforceable_at(each, f"{place}/{name}")
        if name == "json_schema" and is_schema
        else _enforceable_tag(each, f"{place}/{name}")
        for name, each in part.items()
    }


def _arguments(part: Mapping[str, Any]) -> Any:
    """JSON of the arguments of a tool, as the library takes it. Raises BadRequest."""
    try:
        schema = enforceable_arguments(part.get("json_schema"))
    except NotEnforced as error:
        if part.get("is_strict"):
            raise BadRequest(f"cannot be enforced: {part.get('tool')!s:.80}: {error}") from error
        # Nobody has asked for more than a call that is well formed.
        schema = enforceable({"type": "object"})
    style = part.get("style", "json")
    whitespace = {"max_whitespace_cnt": _MAX_BLANKS}
    return {"type": "json_schema", "json_schema": schema, "style": style, **whitespace}


def _enforceable_at(schema: Any, place: str) -> Any:
    try:
        return enforceable(schema)
    except NotEnforced as error:
        raise error.within(place) from error


def _reason(error: BaseException) -> str:
    """The first line of what the library says, without the place in its source."""
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return "it takes more memory than a grammar may. Make it smaller"
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    text = text.rpartition(".cc:")[2].partition(": ")[2] or text
    return text.rpartition("Invalid structural tag error: ")[2].rstrip(".")


def _without_line(reason: str) -> str:
    """A reason without a line of a grammar that the library has made, and nobody has written."""
    return _OF_LINE.sub("", reason)
