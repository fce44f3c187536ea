"""Strings of JSON schemas, as the compiler of grammars takes them."""

import re
from collections.abc import Mapping
from typing import Any

from raydix.errors import BadRequest

MAX_LENGTH = 20_000
"""The longest string whose length is enforced."""


class NotEnforced(BadRequest):
    """A schema demands what no grammar would enforce."""


def refuse(place: str, problem: str) -> NotEnforced:
    """The error of what stands at a place of a schema."""
    return NotEnforced(f"{problem} at {place or '#'}")


def read_string(own: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The keywords of a string for the compiler. Raises NotEnforced."""
    has_length = "minLength" in own or "maxLength" in own
    if "pattern" in own:
        if has_length or "format" in own:
            raise refuse(place, "a length or 'format' is not enforced beside 'pattern'")
        check_pattern(own["pattern"], f"{place}/pattern")
    if not has_length:
        return dict(own)
    if "format" in own:
        raise refuse(place, "a length is not enforced beside 'format'")

    bounds = [own.get(name) for name in ("minLength", "maxLength")]
    if not all(each is None or (isinstance(each, int) and each >= 0) for each in bounds):
        raise refuse(place, f"lengths of {bounds} are no whole numbers from 0")
    shortest, longest = bounds[0] or 0, bounds[1]
    if max(shortest, longest or 0) > MAX_LENGTH:
        raise refuse(place, f"a length of more than {MAX_LENGTH} characters is not enforced")
    if longest is not None and longest < shortest:
        raise refuse(place, "no string is as long as that")
    # Of lengths alone the compiler would make strings with control characters, which are no JSON.
    return {"pattern": f"^{_ANY}{{{shortest},{'' if longest is None else longest}}}$"}


_ANY = r"(?:[ !#-\u005b\u005d-\u007f]|[\u0080-\u07ff]|[\u0800-\ud7ff]|[\ue000-\uffff]|[𐀀-􏿿])"
"""A character that JSON writes as it is. Of a class such as [^a] the compiler makes UTF-8 that is
too long, too, which is read as several characters.
"""
_CLASS_PART = r"(?:[^\[\]\\\"\x00-\x1f]|\\[dws]|\\[\]\[.^$*+?(){}|/\-])"
_PATTERN = re.compile(
    rf"""\^? (?: [^\[\]\\\"\x00-\x1f^$(]      # a character, or what repeats the one before
        | \\[dws] | \\[\]\[.^$*+?(){{}}|/\-]  # a class, or a character that would mean more
        | \[\^?{_CLASS_PART}+\]
        | \((?!\?) | \(\?:                    # the beginning of a group
    )* \$?""",
    re.VERBOSE,
)
"""What the compiler reads as ECMAScript does. Of others it passes over some parts, and of what JSON
writes with a backslash it would make no JSON.
"""


def check_pattern(pattern: Any, place: str) -> None:
    """Raise NotEnforced for a regular expression of which a part would be passed over."""
    if not isinstance(pattern, str):
        raise refuse(place, "a regular expression is expected")
    if _PATTERN.fullmatch(pattern) is None:
        raise refuse(
            place,
            f"the regular expression {pattern!r:.80} is not enforced: of escapes there are \\d, "
            f"\\w, \\s and those of .^$*+?(){{}}[]|/-, of groups plain ones and (?:, and ^ and $ "
            f"stand at its ends",
        )
