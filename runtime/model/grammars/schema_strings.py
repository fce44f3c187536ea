"""Strings of JSON schemas, as the compiler of grammars takes them."""

from collections.abc import Mapping
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.model.grammars.schema_patterns import any_character, is_read, plain

MAX_LENGTH = 20_000
"""The longest string whose length is enforced."""
_MONTH_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:[0-9]{{4}}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-]{_HOUR_MINUTE})"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[0-9a-zA-Z](?:[0-9a-zA-Z-]{0,61}[0-9a-zA-Z])?"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "idn-hostname": r"[0-9a-zA-Z]{1,63}(?:\.[0-9a-zA-Z]{1,63})*",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
"""Formats of which the compiler would make what is none: a day that no month has, a byte with zeros
before it, what is no JSON.
"""
_NARROWER: Mapping[str, str] = {
    "idn-email": "email",
    "iri": "uri",
    "iri-reference": "uri-reference",
}
"""Formats for which the compiler has nothing, by those which contain less."""


class NotEnforced(BadRequest):
    """A schema demands what no grammar would enforce."""

    def __init__(self, place: str, problem: str) -> None:
        """`place`: a JSON pointer into the schema."""
        super().__init__(f"{problem} at {place or '#'}")
        self._place = place
        self._problem = problem

    def within(self, place: str) -> "NotEnforced":
        """The same, of a schema that stands at a place of something else."""
        return NotEnforced(place + self._place, self._problem)


def refuse(place: str, problem: str) -> NotEnforced:
    """The error of what stands at a place of a schema."""
    return NotEnforced(place, problem)


def read_string(own: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The keywords of a string for the compiler. Raises NotEnforced."""
    has_length = "minLength" in own or "maxLength" in own
    if "pattern" in own:
        if has_length or "format" in own:
            raise refuse(place, "a length or 'format' is not enforced beside 'pattern'")
        return {"pattern": read_pattern(own["pattern"], f"{place}/pattern")}
    if not has_length:
        return _format(own["format"], place) if "format" in own else {}
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
    return {"pattern": f"^{any_character()}{{{shortest},{'' if longest is None else longest}}}$"}


def _format(name: Any, place: str) -> dict[str, Any]:
    if not isinstance(name, str):
        raise refuse(f"{place}/format", "the name of a format is expected")
    if name == "regex":
        raise refuse(f"{place}/format", "the format 'regex' is not enforced")
    if name in _FORMATS:
        return {"pattern": read_pattern(f"^{_FORMATS[name]}$", place)}
    return {"format": _NARROWER.get(name, name)}


def read_pattern(pattern: Any, place: str) -> str:
    """A regular expression for the compiler. Raises NotEnforced if it would pass over a part."""
    if not isinstance(pattern, str):
        raise refuse(place, "a regular expression is expected")
    if not is_read(pattern):
        raise refuse(
            place,
            f"the regular expression {pattern!r:.80} is not enforced: of escapes there are "
            "\\d, \\w, \\s, \\D, \\W, \\S and those of .^$*+?(){}[]|/-, of groups plain ones and "
            "(?:, and ^ and $ stand at its ends",
        )
    read = plain(pattern)
    if read is None:
        raise refuse(
            place,
            f"a class of the regular expression {pattern!r:.80} has no character that JSON writes "
            "without a backslash, and is not enforced",
        )
    return read
