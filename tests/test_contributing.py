"""The guide for contributors says what the code says: paths exist, names are where it says."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "contributing.md").read_text()
MAX_FILES = 4
_ITEM = re.compile(
    r"^\d+\. `(?P<path>[^`]+)`(?:, new, (?:like|as in) `(?P<model>[^`]+)`)?"
    r"(?P<text>.*(?:\n   .*)*)",
    flags=re.MULTILINE,
)
_CODE = re.compile(r"`([^`]+)`")
_PATH = re.compile(
    r"(?:runtime|kernels|moe|plugins|tests|benchmarks|docs|configs|examples)/[\w/.]*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A file that a recipe touches, and the names that the recipe says are in it."""

    path: str
    model: str | None
    """A file like the one that is new."""
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """What is in the file, or in the one that it is to be like."""
        return (ROOT / (self.model or self.path)).read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One change, file by file. `names`: those between its steps, of any of its files."""

    title: str
    steps: tuple[Step, ...]
    names: tuple[str, ...]


def read_recipes() -> list[Recipe]:
    """The sections below `Recipes`."""
    sections = GUIDE.partition("## Recipes")[2].split("\n### ")[1:]
    recipes = []
    for section in sections:
        title, _, text = section.partition("\n")
        steps = tuple(
            Step(path=found["path"], model=found["model"], names=names_in(found["text"]))
            for found in _ITEM.finditer(text)
        )
        recipes.append(Recipe(title=title, steps=steps, names=names_in(_ITEM.sub("", text))))
    return recipes


def names_in(text: str) -> tuple[str, ...]:
    """What is in backticks, but for paths and commands, which are looked at elsewhere."""
    return tuple(
        name for name in _CODE.findall(text) if not _PATH.search(name) and "python" not in name
    )


def has_name(text: str, name: str) -> bool:
    """Whether a name is in a text as a whole word; of a command such as `raydix doctor`, each."""
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in name.split())


RECIPES = read_recipes()


def test_the_guide_has_recipes() -> None:
    assert [recipe.title for recipe in RECIPES] == [
        "An eviction policy",
        "A scheduling policy",
        "A state of a request",
        "An L3 backend",
        "A model family",
        "A checkpoint format",
        "A kernel",
        "A logit rule",
        "A metric",
        "A command-line verb",
    ]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_a_recipe_touches_at_most_four_files_one_of_them_a_test(recipe: Recipe) -> None:
    paths = [step.path for step in recipe.steps]

    assert len(paths) == len(set(paths))
    assert 1 < len(paths) <= MAX_FILES
    assert any(path.startswith("tests/") for path in paths)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_every_name_of_a_recipe_is_in_the_file_that_it_is_said_to_be_in(recipe: Recipe) -> None:
    for step in recipe.steps:
        assert ("NAME" in step.path) == (step.model is not None), f"is {step.path} new or not?"
        missing = [name for name in step.names if not has_name(step.text, name)]
        assert missing == [], f"not in {step.model or step.path}"

    everything = "\n".join(step.text for step in recipe.steps)
    assert [name for name in recipe.names if not has_name(everything, name)] == []


def test_every_path_in_the_guide_exists() -> None:
    paths = {path for path in _PATH.findall(GUIDE) if "NAME" not in path}

    assert len(paths) > 30
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_room_of_runtime_has_a_line() -> None:
    rooms = sorted(path.parent for path in (ROOT / "runtime").glob("*/__init__.py"))

    lines = set(re.findall(r"^\| `([\w/]+)/` \|", GUIDE, flags=re.MULTILINE))

    assert [str(room.relative_to(ROOT)) for room in rooms] == sorted(
        line for line in lines if line.count("/") == 1 and line.startswith("runtime/")
    )
