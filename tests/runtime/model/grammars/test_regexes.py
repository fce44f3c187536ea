"""What a regular expression says is enforced, or it is refused by the part that would not be."""

import json
import re

import pytest

pytest.importorskip("xgrammar")

from raydix.errors import BadRequest
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from tests.grammar_walks import compiler, walk


@pytest.mark.parametrize(
    "text",
    [
        r"[A-Z][a-z]{2,5} (rain|sun)",
        r"^yes$|^no$",
        r"\d{3}-[\w.-]+\$",
        r"[$^|()]+\^(?:a|\(b)[\]\\d]",
        "é\\x41\\u0042[^\\d\\s]",
    ],
)
def test_outputs_match(text: str) -> None:
    grammar = Grammar(kind=GrammarKind.REGEX, text=text)

    for seed in range(5):
        output = walk(grammar, seed)
        assert output is None or re.fullmatch(text, output.decode(), re.ASCII)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"[\p{L}]+", r"'\p'"),
        (r"\Aab\Z", r"'\A'"),
        (r"a[x\1]", r"'\1'"),
        ("a^b", "'^'"),
        ("(a$|b)c", "'$'"),
        ("a$b", "'$'"),
    ],
)
@pytest.mark.parametrize("kind", [GrammarKind.REGEX, GrammarKind.STRUCTURAL_TAG])
def test_what_would_be_passed_over_is_refused(kind: GrammarKind, text: str, words: str) -> None:
    tag = {"type": "structural_tag", "format": {"type": "regex", "pattern": text}}
    given = text if kind is GrammarKind.REGEX else json.dumps(tag)

    with pytest.raises(BadRequest, match="cannot be enforced: " + re.escape(words)):
        compiler().compile(Grammar(kind=kind, text=given))
