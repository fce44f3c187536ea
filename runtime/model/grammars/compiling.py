"""A compiler of grammars for the vocabulary of one model.

What it takes, in time and memory, is bounded by the process that it is in.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from raydix.errors import BadRequest
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.regexes import check_regex
from raydix.runtime.model.grammars.schema_check import enforceable
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
            raise BadRequest(f"cannot be compiled: {_reason(error)}") from error
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
                tag = json.dumps(_enforceable_tag(_parsed(text), 0), allow_nan=False)
                return self._compiler.compile_structural_tag(tag)

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


def _enforceable_tag(part: Any, depth: int) -> Any:
    """A structural tag whose schemas demand only what is enforced."""
    if depth > MAX_DEPTH:
        raise BadRequest(f"is nested deeper than {MAX_DEPTH}")
    if isinstance(part, list):
        return [_enforceable_tag(each, depth + 1) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
        check_regex(part["pattern"])
    is_schema = part.get("type") == "json_schema"
    if is_schema:
        # Otherwise blanks could go on for ever.
        part = {"max_whitespace_cnt": _MAX_BLANKS, **part}
    return {
        name: enforceable(each)
        if name == "json_schema" and is_schema
        else _enforceable_tag(each, depth + 1)
        for name, each in part.items()
    }


def _reason(error: BaseException) -> str:
    """The first line of what the library says, without the place in its source."""
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return "it takes more memory than a grammar may. Make it smaller"
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return (text.rpartition(".cc:")[2].partition(": ")[2] or text).rstrip(".")
