"""The table of proofs names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROOFS = (ROOT / "docs" / "proofs.md").read_text()


def test_every_path_in_the_proofs_exists() -> None:
    paths = set(re.findall(r"tests/[\w/]+(?:\.(?:py|sh))?", PROOFS))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_test_in_the_proofs_exists() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", PROOFS)
    assert len(named) > 50
    assert [
        f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()
    ] == []
