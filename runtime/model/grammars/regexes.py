"""Regular expressions of which the compiler of grammars would pass over parts."""

import re

from raydix.errors import BadRequest

_ESCAPED = r"dDwWsSfnrtvxu0b"
"""Letters and digits that mean something behind a backslash; `x`, `u` and `b` are looked at by the
compiler."""
_PART = re.compile(
    rf"""(?P<escape> \\ (?! [{_ESCAPED}] ) [A-Za-z0-9] )
        | \\ .
        | \[ (?P<members> (?: \\ . | [^\]\\] )* ) \]
        | (?P<mark> [()|^$] )
        | .""",
    re.VERBOSE | re.DOTALL,
)


def check_regex(text: str) -> None:
    """Raise BadRequest for a part that would be taken for something else, or for nothing.

    An unknown escape would be its letter, and `^` and `$` within the expression nothing. They may
    stand at the ends of the whole, and of its alternatives.
    """
    depth = 0
    for part in _PART.finditer(text):
        members = part["members"] or ""
        for found in (part, *_PART.finditer(members)):
            if found["escape"] is not None:
                raise _refused(text, f"'{found['escape']}' is not enforced in")
        match part["mark"]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "^" if depth or text[: part.start()][-1:] not in ("", "|"):
                raise _refused(text, "'^' is not enforced within")
            case "$" if depth or text[part.end() :][:1] not in ("", "|"):
                raise _refused(text, "'$' is not enforced within")


def _refused(text: str, problem: str) -> BadRequest:
    return BadRequest(f"cannot be enforced: {problem} the regular expression {text!r:.80}")
