"""Regular expressions of JSON schemas, said such that what comes of them is JSON and UTF-8.

The compiler takes a class such as `.` or `[^a]` byte by byte: of some it makes UTF-8 that is too
long, and of others characters that JSON has to escape. So every class is written out here as the
characters that JSON writes as they are, those of each length in UTF-8 by themselves.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

_Range = tuple[int, int]
"""The first and the last of some code points."""
_PLAIN: Sequence[_Range] = (
    *((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF)),
    *((0xE000, 0xFFFF), (0x10000, 0x10FFFF)),
)
"""What JSON writes as it is, cut where UTF-8 takes a byte more."""
_LAST = 0x10FFFF
_BLANKS: Sequence[_Range] = (
    *((0x9, 0xD), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_DIGITS: Sequence[_Range] = ((0x30, 0x39),)
_WORD: Sequence[_Range] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BEYOND_ASCII: _Range = (0x80, _LAST)
_Sets = Mapping[str, Sequence[_Range]]
_SURE: _Sets = {"d": _DIGITS, "w": _WORD, "s": _BLANKS}
"""What all languages take for a digit, a part of a word, a blank."""
_MAYBE: _Sets = {
    "d": (*_DIGITS, _BEYOND_ASCII),
    "w": (*_WORD, _BEYOND_ASCII),
    "s": (*_BLANKS, (0x1C, 0x1F), (0x85, 0x85), (0x180E, 0x180E), (0xFEFF, 0xFEFF)),
}
"""What some languages do. Whoever checks an answer may read a schema in another one than asked."""
_LINE_ENDS: Sequence[_Range] = ((0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029))

_MEMBER = r"[^\[\]\\\x00-\x1f]|\\[dwsDWS]|\\[\]\[.^$*+?(){}|/\\\"\-]"
_ATOM = re.compile(
    rf"\[(?P<negated>\^?)(?P<members>(?:{_MEMBER})+)\]|\\(?P<set>[dwsDWS])|\\.|(?P<any>\.)|."
)
_MEMBERS = re.compile(_MEMBER)
_PATTERN = re.compile(
    rf"""\^? (?: [^\[\]\\\"\x00-\x1f^$(]      # a character, or what repeats the one before
        | \\[dwsDWS] | \\[\]\[.^$*+?(){{}}|/\-]  # a class, or a character that would mean more
        | \[\^?(?:{_MEMBER})+\]
        | \((?!\?) | \(\?:                    # the beginning of a group
    )* \$?""",
    re.VERBOSE,
)
"""What is read as ECMAScript does: of others the compiler passes over some parts."""


def is_read(pattern: str) -> bool:
    """Whether all parts of a regular expression are enforced."""
    return _PATTERN.fullmatch(pattern) is not None


def plain(pattern: str) -> str | None:
    """A pattern for the compiler, of one that `is_read`; None: one of its classes has no character.

    What it matches the other one matches, too.
    """
    parts: list[str] = []
    for atom in _ATOM.finditer(pattern):
        ranges = _ranges_of(atom)
        if ranges is None:
            parts.append(atom.group())
            continue
        written = _written(ranges)
        if written is None:
            return None
        parts.append(written)
    return "".join(parts)


def any_character() -> str:
    """One that JSON writes as it is."""
    return _written([(0, _LAST)]) or ""


def _ranges_of(atom: re.Match[str]) -> Sequence[_Range] | None:
    """The characters of a class; None: it is none."""
    if atom["any"]:
        return _complement(_LINE_ENDS)
    if atom["set"]:
        return _set(atom["set"], _SURE, _MAYBE)
    if atom["members"] is None:
        return None
    members = _MEMBERS.findall(atom["members"])
    if atom["negated"]:
        return _complement(list(_ranges_of_members(members, _MAYBE, _SURE)))
    return list(_ranges_of_members(members, _SURE, _MAYBE))


def _ranges_of_members(members: Sequence[str], own: _Sets, others: _Sets) -> Iterator[_Range]:
    index = 0
    while index < len(members):
        member = members[index]
        is_range = members[index + 1 : index + 2] == ["-"] and index + 2 < len(members)
        if member[0] == "\\" and member[1] in "dwsDWS":
            yield from _set(member[1], own, others)
            index += 1
        elif is_range and members[index + 2][-1] not in _set_letters(members[index + 2]):
            yield ord(member[-1]), ord(members[index + 2][-1])
            index += 3
        else:
            yield ord(member[-1]), ord(member[-1])
            index += 1


def _set_letters(member: str) -> str:
    """The letters that make a member a set of characters, if it is escaped at all."""
    return "dwsDWS" if member[0] == "\\" else ""


def _set(letter: str, own: _Sets, others: _Sets) -> Sequence[_Range]:
    """A set; a capital's is what is in none of the others."""
    return _complement(others[letter.lower()]) if letter.isupper() else own[letter]


def _complement(ranges: Sequence[_Range]) -> list[_Range]:
    others, begin = [], 0
    for first, last in sorted(ranges):
        if first > begin:
            others.append((begin, first - 1))
        begin = max(begin, last + 1)
    return [*others, (begin, _LAST)] if begin <= _LAST else others


def _written(ranges: Sequence[_Range]) -> str | None:
    """A group of classes, one for each length of UTF-8; None: JSON has to escape all of them."""
    by_length: dict[int, str] = {}
    for low, high in _PLAIN:
        for first, last in sorted(ranges):
            begin, end = max(low, first), min(high, last)
            if begin <= end:
                length = len(chr(begin).encode())
                own = _code(begin) if begin == end else f"{_code(begin)}-{_code(end)}"
                by_length[length] = by_length.get(length, "") + own
    if not by_length:
        return None
    return f"(?:{'|'.join(f'[{own}]' for own in by_length.values())})"


def _code(code_point: int) -> str:
    return f"\\u{code_point:04x}" if code_point <= 0xFFFF else chr(code_point)
