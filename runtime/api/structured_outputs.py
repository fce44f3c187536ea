"""What an output has to be, by vLLM's names: JSON of a schema, one of some texts, a grammar."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from raydix.errors import BadParameter
from raydix.runtime.api.prompts import is_unicode
from raydix.runtime.messages.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

PARAMETER = "structured_outputs"
MAX_CHOICES = 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """One of these, which is enforced as the output is sampled. Raises BadParameter.

    Whether a grammar can be compiled is told by the engine, as a BadRequest.
    """

    json: str | Mapping[str, Any] | None = field(default=None, hash=False)
    """A JSON schema, as text or as an object."""
    json_object: bool = False
    """Whether any JSON object will do."""
    regex: str | None = None
    """A regular expression of the whole output."""
    choice: Sequence[str] | None = None
    """The texts, up to 1,024, of which the output is one."""
    grammar: str | None = None
    """A grammar in the EBNF of GBNF, whose first rule is `root`."""
    structural_tag: str | Mapping[str, Any] | None = field(default=None, hash=False)
    """A structural tag of xgrammar, as JSON or as an object: free text with enforced parts."""

    parameter: str = PARAMETER
    """What the caller calls this, by which errors name it."""

    def __post_init__(self) -> None:
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self._checked(_choices, self.choice)))
        given = [name for name in _NAMES if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            told = ", ".join(given) or "nothing"
            problem = f"has {told}; expected one of {', '.join(_NAMES)}."
            raise BadParameter(self.parameter, problem)
        # It is made now, so that what is wrong is told now.
        self.to_grammar()

    @classmethod
    def of(cls, value: Any) -> "StructuredOutputs | None":
        """`value` itself, or what a mapping names. Raises BadParameter."""
        if value is None or isinstance(value, StructuredOutputs):
            return value
        known = {*_NAMES}
        if not isinstance(value, Mapping) or not value.keys() <= known:
            told = type(value).__name__
            if isinstance(value, Mapping):
                told = f"a mapping with {', '.join(sorted(map(str, value.keys() - known)))}"
            raise BadParameter(PARAMETER, f"is {told}; expected one of {', '.join(sorted(known))}.")
        return cls(**value)

    def to_grammar(self) -> Grammar:
        """The grammar that is compiled."""
        if self.json_object:
            return self._grammar(GrammarKind.JSON_OBJECT, "")
        if self.regex is not None:
            return self._grammar(GrammarKind.REGEX, self._checked(_text, self.regex))
        if self.grammar is not None:
            return self._grammar(GrammarKind.EBNF, self._checked(_text, self.grammar))
        if self.choice is not None:
            alternatives = " | ".join(map(_literal, self.choice))
            return self._grammar(GrammarKind.EBNF, f"root ::= {alternatives}")
        if self.structural_tag is not None:
            tag = self._checked(_json_text, self.structural_tag)
            return self._grammar(GrammarKind.STRUCTURAL_TAG, tag)
        return self._grammar(GrammarKind.JSON_SCHEMA, self._checked(_json_text, self.json))

    def _grammar(self, kind: GrammarKind, text: str) -> Grammar:
        num_bytes = len(text.encode())
        if num_bytes > MAX_GRAMMAR_BYTES:
            problem = (
                f"has a {kind.value} of {num_bytes} bytes; expected at most {MAX_GRAMMAR_BYTES}."
            )
            raise BadParameter(self.parameter, problem)
        return Grammar(kind=kind, text=text, parameter=self.parameter)

    def _checked(self, read: Callable[[Any], T], value: Any) -> T:
        """What `read` makes of a value. Raises BadParameter, with what it says is wrong."""
        try:
            return read(value)
        except ValueError as error:
            raise BadParameter(self.parameter, str(error)) from error


_NAMES = tuple([each.name for each in fields(StructuredOutputs) if each.name != "parameter"])


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise ValueError(f"is {value!r:.80}; expected some text.")
    return value


def _json_text(value: Any) -> str:
    """The JSON of a value, or a text that has to be some."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(parsed, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}.") from error
    if not isinstance(parsed, Mapping) or not is_unicode(text):
        raise ValueError(f"is {text:.80}; expected a JSON object.")
    return text


def _choices(given: Any) -> Sequence[str]:
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if (
        not is_list
        or not 0 < len(given) <= MAX_CHOICES
        or not all(isinstance(each, str) and each and is_unicode(each) for each in given)
    ):
        raise ValueError(f"has the choices {given!r:.80}; expected 1 to {MAX_CHOICES} texts.")
    return list(dict.fromkeys(given))


def _literal(text: str) -> str:
    """A text as a terminal of a grammar."""
    return '"' + "".join(_escaped(each) for each in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}"
