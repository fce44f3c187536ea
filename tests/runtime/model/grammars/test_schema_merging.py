"""What stands beside values that a schema names: it is checked here, with what it refers to."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema")

from raydix.runtime.model.grammars.schema_check import enforceable
from raydix.runtime.model.grammars.schema_strings import NotEnforced


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/x", "{folder}/x.json", "x.json", "other#/a"]
)
@pytest.mark.parametrize("keyword", ["enum", "const"])
def test_nothing_is_fetched_of_what_a_schema_refers_to(
    keyword: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", opened.append)
    (tmp_path / "x.json").write_text('{"type": "integer"}')
    address = address.format(folder=tmp_path.as_uri())
    value = {"a": 1}
    schema = {
        keyword: [value] if keyword == "enum" else value,
        "properties": {"a": {"$ref": address}},
    }

    with pytest.raises(NotEnforced, match=f"{re.escape(repr(address)[:80])} is not followed; exp"):
        enforceable({"properties": {"p": schema}})
    assert not opened

    within = {
        **schema,
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"type": "null"}},
    }
    with pytest.raises(NotEnforced, match="no value is valid"):
        enforceable(within)


WRONG = {"minimum": ["x"]}
CALL = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"oneOf": [{"required": False}, {"required": []}]}, "not told apart"),
        ({"oneOf": [{"required": [[]]}, CALL]}, "not told apart"),
        ({"oneOf": [{**CALL, "properties": []}, CALL]}, "not told apart"),
        ({"type": "array", "minItems": None}, "None is no whole number from 0 at /minItems"),
        ({"contains": {}, "maxItems": None}, "None is no whole number from 0 at /maxItems"),
        ({"const": 1, "multipleOf": float("nan")}, r"cannot be checked \(ValueError\)"),
        ({"const": 10**400, "multipleOf": 0.5}, r"cannot be checked \(OverflowError\)"),
        (
            {"enum": [{"a": 1}], "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": WRONG}},
            r"cannot be checked \(TypeError\)",
        ),
    ],
)
def test_what_is_no_schema_is_refused_by_name(schema: Any, told: str) -> None:
    with pytest.raises(NotEnforced, match=told):
        enforceable(schema)


class Compared(str):
    """A text that counts what all of its kind are compared with."""

    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Compared.num_compared += 1
        return str(self) == other

    __hash__ = str.__hash__


def test_named_values_are_not_looked_for_in_a_list_of_themselves() -> None:
    values = [Compared(f"value {number}") for number in range(100)]
    schema = {"type": "string", "enum": values}
    before = Compared.num_compared

    read = [enforceable(schema), enforceable({"allOf": [schema, {"maxLength": 9}]})]

    assert Compared.num_compared - before < 10 * len(values)
    assert read == [{"enum": values}] * 2


def test_many_named_values_are_told_apart_without_comparing_each_with_each() -> None:
    values = [Compared(f"value {number}") for number in range(100)]
    before = Compared.num_compared

    enforceable({"oneOf": [{"const": each} for each in values]})

    assert Compared.num_compared - before < 10 * len(values)


@pytest.mark.parametrize(
    ("values", "is_apart"),
    [
        ([1, True, "1", None, 2.5], True),
        ([1, 1.0], False),
        ([0, False, [0], [1]], True),
        ([{"a": 1}, {"a": 1}], False),
    ],
)
def test_named_values_are_told_apart_as_json_does(values: list[Any], is_apart: bool) -> None:
    schema = {"oneOf": [{"const": each} for each in values]}
    if is_apart:
        assert enforceable(schema)
    else:
        with pytest.raises(NotEnforced, match="not told apart"):
            enforceable(schema)


def test_a_value_is_both_of_what_is_named() -> None:
    assert enforceable({"enum": [1, 2], "const": 2}) == {"enum": [2]}
    assert enforceable({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 2]}]}) == {"enum": [2, 3]}
    with pytest.raises(NotEnforced, match="no value is valid"):
        enforceable({"enum": [1, 2], "const": 3})
