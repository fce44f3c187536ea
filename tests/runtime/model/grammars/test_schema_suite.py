"""JSON-Schema-Test-Suite: each schema is enforced or refused by name, whatever weights there are.

`tests/schema_suite.sh run` fetches it. What a grammar takes may be less than what is valid, in ways
that are counted here; `-s` shows how often.
"""

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

pytest.importorskip("xgrammar")

from raydix.errors import BadRequest
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.schema_check import enforceable
from tests.grammar_walks import byte_vocabulary, compiler, walk

SUITE = Path(".venv/schema_suite/tests")
DRAFTS: dict[str, Any] = {
    "draft2020-12": jsonschema.Draft202012Validator,
    "draft7": jsonschema.Draft7Validator,
}
NUM_WALKS = 5
MAX_TOKENS = 1000
MAX_ORDERED = 5
"""The most properties of which all orders are tried."""
ANNOTATIONS = ("content.json",)
"""Files about keywords that older drafts let assert something, and newer ones do not."""
NARROW_FORMATS = ("duration", "email", "ipv6", "uri", "uri-reference", "uri-template")

pytestmark = [
    pytest.mark.skipif(
        not SUITE.exists(), reason=f"no suite at {SUITE}: tests/schema_suite.sh fetches it"
    ),
    pytest.mark.parametrize("draft", DRAFTS),
]


@dataclass(frozen=True, slots=True)
class Case:
    """One schema with instances of which the suite says whether they are valid."""

    name: str
    file: str
    schema: Any
    instances: tuple[tuple[Any, bool], ...]
    content: bytes | None
    """The compiled grammar; None: it is refused."""
    refusal: str

    @property
    def grammar(self) -> Grammar:
        return grammar_of(self.schema)


def grammar_of(schema: Any) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))


@functools.cache
def cases(draft: str) -> tuple[Case, ...]:
    """All schemas of a draft, compiled once."""
    found = []
    for path in sorted((SUITE / draft).rglob("*.json")):
        for group in json.loads(path.read_text()):
            content, refusal = None, ""
            try:
                content = compiler().compile(grammar_of(group["schema"]))
            except BadRequest as error:
                refusal = str(error)
            found.append(
                Case(
                    name=f"{path.name}: {group['description']}",
                    file=path.name,
                    schema=group["schema"],
                    instances=tuple((each["data"], each["valid"]) for each in group["tests"]),
                    content=content,
                    refusal=refusal,
                )
            )
    assert len(found) > 200, f"{SUITE / draft} is not whole"
    return tuple(found)


def takes(content: bytes, text: str) -> bool:
    """Whether a grammar takes a text, and lets it end."""
    vocabulary = byte_vocabulary()
    matcher = vocabulary.matcher(content, list(text.encode()))
    if matcher.is_over:
        return False
    words = np.zeros((1, vocabulary.num_words), dtype=np.int32)
    vocabulary.fill([matcher], words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return bool(bits[vocabulary.info.stop_token_ids[0]])


def in_other_words(value: Any) -> Iterator[Any]:
    """The same value with its properties in other orders, and whole numbers without a point."""
    match value:
        case float() if value.is_integer():
            yield int(value)
        case list():
            yield from map(list, itertools.product(*map(in_other_words, value)))
        case dict() if len(value) <= MAX_ORDERED:
            for names in itertools.permutations(value):
                own = [list(in_other_words(value[name])) for name in names]
                for each in itertools.product(*own):
                    yield dict(zip(names, each, strict=True))
        case _:
            yield value


def takes_otherwise(content: bytes, value: Any) -> bool:
    """Whether a grammar takes a value if it is written in another way."""
    return any(
        takes(content, json.dumps(each, ensure_ascii=False, separators=separators))
        for each in in_other_words(value)
        for separators in ((", ", ": "), (",", ":"))
    )


def whole(part: Any) -> Any:
    """A schema whose patterns are those of whole strings, as grammars take them."""
    if isinstance(part, list):
        return [whole(each) for each in part]
    if not isinstance(part, dict):
        return part
    read = {name: whole(each) for name, each in part.items()}
    if isinstance(read.get("pattern"), str):
        read["pattern"] = f"^(?:{read['pattern']})$"
    if "patternProperties" in read:
        named = read["patternProperties"]
        read["patternProperties"] = {f"^(?:{name})$": each for name, each in named.items()}
    return read


def why_not(case: Case, value: Any) -> str:
    """Why a grammar does not take a valid value."""
    assert case.content is not None
    if takes_otherwise(case.content, value):
        return "written otherwise"
    schema = enforceable(case.schema)
    for said, read in (("left out by", schema), ("no whole match of", whole(schema))):
        checker = jsonschema.Draft202012Validator(
            read, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        if (error := next(checker.iter_errors(value), None)) is not None:
            return f"{said} {error.validator!r}"
    # What the compiler takes for a format is less than all of it.
    if schema.get("format") in NARROW_FORMATS:
        return "left out by 'format'"
    return "for no known reason"


def test_what_is_refused_is_named(draft: str) -> None:
    for case in cases(draft):
        if case.content is None:
            assert case.refusal.startswith("cannot be enforced: "), (case.name, case.refusal)
            assert " at " in case.refusal, (case.name, case.refusal)


def test_what_random_weights_write_is_valid(draft: str) -> None:
    known = DRAFTS[draft]
    outcomes: Counter[str] = Counter()

    for case in cases(draft):
        if case.content is None:
            outcomes["refused"] += 1
            continue
        checker = known(case.schema, format_checker=known.FORMAT_CHECKER)
        for number in range(NUM_WALKS):
            text = walk(case.grammar, number, MAX_TOKENS)
            outcomes["unended" if text is None else "valid"] += 1
            if text is not None:
                error = next(checker.iter_errors(json.loads(text)), None)
                assert error is None, (case.name, case.schema, text, error)

    assert outcomes["unended"] < outcomes["valid"] / 10, outcomes
    assert outcomes["refused"] < len(cases(draft)) * 0.6, outcomes
    print(f"{draft}: {dict(outcomes)}")


def test_what_is_not_valid_is_never_taken(draft: str) -> None:
    for case in cases(draft):
        if case.content is None or case.file in ANNOTATIONS:
            continue
        for value, is_valid in case.instances:
            if not is_valid:
                text = json.dumps(value, ensure_ascii=False)
                assert not takes(case.content, text), (case.name, case.schema, text)
                assert not takes_otherwise(case.content, value), (case.name, case.schema, text)


def test_what_is_valid_is_taken_or_it_is_known_why_not(draft: str) -> None:
    reasons: Counter[str] = Counter()

    for case in cases(draft):
        for value, is_valid in case.instances:
            if case.content is None or not is_valid:
                continue
            is_taken = takes(case.content, json.dumps(value, ensure_ascii=False))
            reason = "taken" if is_taken else why_not(case, value)
            assert reason != "for no known reason", (case.name, case.schema, value)
            reasons[reason] += 1

    assert reasons["taken"] > 250, reasons
    print(f"{draft}: {dict(reasons)}")
