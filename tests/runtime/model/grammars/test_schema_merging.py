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
