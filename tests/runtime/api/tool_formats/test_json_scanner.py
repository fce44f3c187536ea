"""The scanner takes what Python's own reader takes, and no more."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.api.tool_formats.json_scanner import JsonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def num_read(text: str) -> int | None:
    """The characters of the value with which a text begins, if there is one."""
    scanner = JsonScanner()
    number = scanner.read(text)
    if not scanner.is_over:
        scanner.end()
    return None if scanner.is_wrong else number


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=lambda name: [][0])
    except (ValueError, IndexError):
        return False
    return True


@settings(max_examples=200, derandomize=True)
@given(value=VALUES, is_ascii=st.booleans())
def test_a_value_ends_where_it_does(value: object, is_ascii: bool) -> None:
    text = json.dumps({"a": value}, ensure_ascii=is_ascii)
    assert num_read(text) == num_read(text + ' }"') == len(text)


@settings(max_examples=500, derandomize=True)
@given(value=VALUES, place=st.integers(0, 60), put_in=st.text('{}[]"\\:,1-.etx \n', max_size=2))
def test_what_is_wrong_is_found(value: object, place: int, put_in: str) -> None:
    text = json.dumps([value])
    text = text[:place] + put_in + text[place + 1 :]
    number = num_read(text)
    assert (number == len(text.rstrip(" \n"))) == is_json(text)


@pytest.mark.parametrize("text", ["[" * 200 + "]" * 200, "nul", "01", "-", '"\\x"', '"\n"', ""])
def test_what_no_reader_takes_is_wrong(text: str) -> None:
    assert num_read(text) is None
