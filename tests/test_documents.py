"""Documents: the README is short, links lead somewhere, pictures fit their page."""

import re
from pathlib import Path

import pytest

from raydix.runtime.cli.main import app
from raydix.runtime.model.families.refused import NOT_COMPUTED
from raydix.runtime.model.families.table import Family

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "tests/**/*.md",
        "benchmarks/**/*.md",
        "plugins/**/*.md",
    )
    for path in ROOT.glob(pattern)
)


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_readme_names_every_verb_of_the_command_line() -> None:
    commands = re.findall(r"^\| (`raydix .+?) \|", (ROOT / "README.md").read_text(), flags=re.M)
    named = set(re.findall(r"[\w-]+", " ".join(commands)))

    apps = [app, *(group.typer_instance for group in app.registered_groups)]
    verbs = {
        str(command.name or command.callback.__name__).replace("_", "-")
        for each in apps
        for command in each.registered_commands
    }

    assert verbs - named == set()


def test_models_are_named_with_what_those_that_are_refused_need() -> None:
    text = (ROOT / "docs" / "models.md").read_text()

    assert [
        each.value.model_type for each in Family if f"`{each.value.model_type}`" not in text
    ] == []
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", text, flags=re.M))
    assert {name: rows.get(name) for name in NOT_COMPUTED} == NOT_COMPUTED


@pytest.mark.parametrize(
    "name", ["README", "docs/architecture", "docs/first_reading", "docs/glossary"]
)
def test_files_are_named_whole_and_exist(name: str) -> None:
    text = (ROOT / f"{name}.md").read_text()

    files = re.findall(r"`([\w/.]+\.py|\w+/[\w/]*)`", text)

    assert [file for file in files if "/" not in file or not (ROOT / file).exists()] == []


@pytest.mark.parametrize("name", ["docs/architecture", "docs/glossary"])
def test_names_before_a_file_are_in_it(name: str) -> None:
    text = (ROOT / f"{name}.md").read_text()

    named = re.findall(r"`([A-Za-z_.]+)`\s\(`([\w/]+\.py)`", text)

    assert len(named) > 5
    assert [
        (word, file)
        for word, file in named
        if not re.search(rf"\b{word.rpartition('.')[2]}\b", (ROOT / file).read_text())
    ] == []


def test_the_first_reading_is_ten_files_and_an_afternoon() -> None:
    text = (ROOT / "docs/first_reading.md").read_text()
    numbered = re.findall(r"^(\d+)\. `([\w/]+\.py)`", text, flags=re.M)

    assert [int(number) for number, _ in numbered] == list(range(1, 11))
    num_lines = sum(len((ROOT / file).read_text().splitlines()) for _, file in numbered)
    assert num_lines <= 3000


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text()
    links = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
    local = [link for link in links if "://" not in link]

    assert [link for link in local if not (document.parent / link).exists()] == []


def test_light_and_dark_pictures_differ_in_colours_alone() -> None:
    light, dark = (
        re.sub(
            r"<style>.*?</style>",
            "",
            (ROOT / f"docs/images/tiers-{name}.svg").read_text(),
            flags=re.S,
        )
        for name in ("light", "dark")
    )

    assert light == dark


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_begin_with_their_header(path: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", path.read_text(), flags=re.M)
    assert [
        table.splitlines()[0]
        for table in tables
        if not re.fullmatch(r"[|: -]+", table.splitlines()[1])
    ] == []
