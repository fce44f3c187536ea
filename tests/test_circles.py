"""No two files need each other: imports never lead back to the file that they start from.

Every import counts, within functions and for types alone, too.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "raydix.runtime": "runtime",
    "raydix.kernels": "kernels",
    "raydix.moe": "moe",
    "raydix.plugins": "plugins",
    "benchmarks": "benchmarks",
}
"""The folders of modules, by the names that these begin with."""


def read_modules() -> dict[str, str]:
    """The text of each module, by its name."""
    return {
        ".".join(
            (package, *path.relative_to(ROOT / folder).with_suffix("").parts)
        ): path.read_text()
        for package, folder in PACKAGES.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.stem != "__init__"
    }


def imported(source: str) -> Iterator[str]:
    """The names that a module imports, each perhaps that of a module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{each.name}" for each in names)


def find_circles(sources: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The modules that lead back to themselves, those of one circle together, in order."""
    needs = {
        name: sorted({each for each in imported(source) if each in sources})
        for name, source in sources.items()
    }
    reached = {name: _reach(name, needs) for name in needs}
    circles = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in needs
        if name in reached[name]
    }
    return sorted(circles)


def _reach(start: str, needs: Mapping[str, list[str]]) -> set[str]:
    """All that a module needs, and what that needs."""
    found: set[str] = set()
    waiting = list(needs[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs[name]
    return found


def test_no_files_need_each_other() -> None:
    modules = read_modules()

    assert len(modules) > 500
    assert find_circles(modules) == []


@pytest.mark.parametrize(
    "back",
    [
        "import a.first",
        "from a.first import Name",
        "from a import first",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.first import Name",
        "def use():\n    from a.first import Name",
    ],
)
def test_a_planted_circle_is_found(back: str) -> None:
    sources = {"a.first": "from a.second import x", "a.second": "import a.third", "a.third": back}
    assert find_circles(sources) == [("a.first", "a.second", "a.third")]


def test_what_two_files_need_is_no_circle() -> None:
    sources = {"a.first": "import a.second, a.third", "a.second": "import a.third", "a.third": ""}
    assert find_circles(sources) == []
