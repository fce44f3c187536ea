"""Tests that share a cluster, or fixtures, run in one process; busy ones fail none."""

import re

import hypothesis

from tests.processes import APART, RAY, ROOT, group_of


def test_every_file_that_uses_the_shared_cluster_runs_in_its_process() -> None:
    word = re.compile(r"\b(ray_cluster|shared_engine|bereaved): ")
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if word.search(path.read_text())]
    assert len(files) > 5
    groups = {path.name: group_of(f"{path.relative_to(ROOT)}::test_any") for path in files}
    assert {name for name, group in groups.items() if group != RAY} == set()


def test_a_files_tests_stay_together_but_for_the_simulation() -> None:
    assert group_of("tests/test_owners.py::test_a") == group_of("tests/test_owners.py::test_b[1]")
    assert group_of("tests/test_owners.py::test_a") != group_of("tests/test_documents.py::test_a")
    (random,) = (ROOT / APART).glob("test_random.py")
    path = random.relative_to(ROOT)
    assert group_of(f"{path}::test_a[0]") != group_of(f"{path}::test_a[10]")


def test_no_drawn_example_is_too_slow() -> None:
    assert hypothesis.settings().deadline is None
    assert hypothesis.settings().derandomize
