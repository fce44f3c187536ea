"""The bound of a folder: no engine deletes unasked what an earlier one was allowed to store."""

from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.storage.capacity.stored_bound import agree_on_bound
from raydix.runtime.storage.file_modes import OWNER_ALONE


def agree(folder: Path, max_bytes: int | None, held_bytes: int) -> str | None:
    """What the folder says afterwards."""
    agree_on_bound(folder, max_bytes, held_bytes, OWNER_ALONE)
    return (folder / "max_bytes").read_text() if (folder / "max_bytes").exists() else None


def test_smaller_bound_than_what_is_held_is_refused_with_all_figures(tmp_path: Path) -> None:
    agree(tmp_path, 1000, 0)
    with pytest.raises(ConfigError) as caught:
        agree(tmp_path, 100, 900)
    for part in (
        "holds 900 bytes",
        "cache.l3.max_bytes 1000",
        "delete 800",
        "another folder",
        f"remove {tmp_path}/max",
    ):
        assert part in str(caught.value)
    assert agree(tmp_path, 1000, 900) == "1000\n"


def test_smaller_bound_that_costs_nothing_is_taken_and_the_larger_one_stays_noted(
    tmp_path: Path,
) -> None:
    agree(tmp_path, 1000, 0)
    assert agree(tmp_path, 100, 100) == "1000\n"
    assert agree(tmp_path, 2000, 900) == "2000\n"


def test_what_engines_with_one_bound_have_added_unseen_by_each_other_may_go(tmp_path: Path) -> None:
    agree(tmp_path, 1000, 0)
    assert agree(tmp_path, 1000, 1900) == "1000\n"


def test_folder_shrinks_for_who_removes_the_note(tmp_path: Path) -> None:
    agree(tmp_path, 1000, 0)
    (tmp_path / "max_bytes").unlink()
    assert agree(tmp_path, 100, 900) == "100\n"


def test_nobody_without_a_bound_notes_one(tmp_path: Path) -> None:
    assert agree(tmp_path, None, 10**9) is None


def test_note_that_is_no_number_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "max_bytes").write_text("")
    assert agree(tmp_path, 100, 900) == "100\n"
    assert [path.name for path in tmp_path.iterdir()] == ["max_bytes"]
