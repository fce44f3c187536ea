"""The table of proofs names tests and programs that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROOFS = (ROOT / "tests" / "proofs.md").read_text()


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


def test_every_program_in_the_proofs_exists() -> None:
    programs = set(re.findall(r"-m ((?:benchmarks|tests)\.[\w.]+)", PROOFS))
    assert len(programs) > 10
    assert [
        name
        for name in sorted(programs)
        if not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
    ] == []


def test_no_claim_is_made_twice() -> None:
    claims = re.findall(r"^\| ([^|]+) \|", PROOFS, flags=re.MULTILINE)
    claims = [claim for claim in claims if claim not in ("claim", "#", "---")]
    assert len(claims) > 100
    assert sorted(claims) == sorted(set(claims))
