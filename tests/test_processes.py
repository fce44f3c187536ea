"""Tests that share a cluster, or fixtures, run in one process; busy ones fail none."""

import re

import hypothesis
import pytest

from tests.processes import AFTER_SILENCE, OWN, ROOT, SHARED, group_of


def test_every_file_that_uses_the_shared_cluster_runs_in_its_process() -> None:
    word = re.compile(r"\b(ray_cluster|shared_engine|bereaved): ")
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if word.search(path.read_text())]
    assert len(files) > 5
    groups = {path.name: group_of(f"{path.relative_to(ROOT)}::test_any") for path in files}
    assert {name for name, group in groups.items() if group != SHARED} == set()
    assert f"{ROOT / AFTER_SILENCE}" in map(str, files)


def test_no_test_of_another_process_asks_for_the_shared_cluster(
    request: pytest.FixtureRequest,
) -> None:
    """Whatever its file says: all tests of this run are looked at, fixtures of fixtures, too."""
    wrong = {
        item.nodeid
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and {"ray_cluster", "bereaved"} & set(item.fixturenames)
        and group_of(item.nodeid) != SHARED
    }
    assert wrong == set()


def test_services_and_what_else_has_a_cluster_of_its_own_run_in_one_process_more() -> None:
    own = ("service/test_scaling.py", "service/test_versions.py", "test_job_submit.py")
    assert {group_of(f"tests/{path}::test_any") for path in own} == {OWN}
    # It has the fixture by another one, and says so.
    assert group_of("tests/service/test_access.py::test_any") == SHARED


def test_a_files_tests_stay_together_but_for_those_that_share_nothing_and_take_long() -> None:
    assert group_of("tests/test_owners.py::test_a") == group_of("tests/test_owners.py::test_b[1]")
    assert group_of("tests/test_owners.py::test_a") != group_of("tests/test_documents.py::test_a")
    for path, first, second in (
        ("tests/simulation/test_random.py", "0", "10"),
        ("tests/exactness/test_families.py", "cuda-2-QWEN3", "cuda-2-PHI3"),
    ):
        assert (ROOT / path).exists()
        assert group_of(f"{path}::test_a[{first}]") != group_of(f"{path}::test_a[{second}]")


def test_no_drawn_example_is_too_slow() -> None:
    assert hypothesis.settings().deadline is None
    assert hypothesis.settings().derandomize
