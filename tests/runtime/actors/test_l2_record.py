"""How an L2 is found, and that there is one of a name."""

from pathlib import Path

import pytest

from raydix.runtime.actors import l2_record
from raydix.runtime.actors.l2_record import L2Name, L2Record, find_l2, is_layout_on, l2_path, l2s_of
from raydix.runtime.actors.lock_file import LockHeld
from raydix.runtime.storage.namespace import make_namespace
from tests.runtime.storage.stores import LAYOUT

NODE, OTHER_NODE = "a" * 56, "b" * 56
RECORD = L2Record(name="l2-1", actor="x:l2-1:host", pid=1, control_address="unix:/a", secret=b"s")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the L2 of a model is found, in a folder of this test alone."""
    monkeypatch.setattr(l2_record, "user_folder", lambda: tmp_path)
    return l2_path(NODE, make_namespace(b"m", "0", LAYOUT), LAYOUT)


def test_l2_is_found_from_its_publication_to_its_release(path: Path) -> None:
    assert find_l2(path) is None
    name = L2Name(path)
    assert find_l2(path) is None
    name.publish(RECORD)
    assert find_l2(path) == RECORD
    assert l2s_of() == l2s_of(NODE) == [RECORD]
    assert l2s_of(OTHER_NODE) == []
    assert is_layout_on(NODE, LAYOUT)
    assert not is_layout_on(OTHER_NODE, LAYOUT)
    name.release()
    assert find_l2(path) is None
    assert not is_layout_on(NODE, LAYOUT)


def test_l2_of_a_process_with_other_messages_is_another_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = L2Name(path)
    name.publish(RECORD)
    monkeypatch.setattr(l2_record, "_SPOKEN", "other messages")
    assert l2_path(NODE, make_namespace(b"m", "0", LAYOUT), LAYOUT) != path
    assert not is_layout_on(NODE, LAYOUT)
    assert l2s_of() == [RECORD]
    name.release()


def test_name_is_one_ls_alone(path: Path) -> None:
    name = L2Name(path)
    with pytest.raises(LockHeld):
        L2Name(path)
    name.release()
    L2Name(path).release()


def test_record_of_a_killed_l2_is_removed_by_the_next(path: Path) -> None:
    path.write_text("its process was killed")
    assert find_l2(path) is None
    other = l2_path(NODE, make_namespace(b"other", "0", LAYOUT), LAYOUT)
    name = L2Name(other)
    assert not path.exists()
    name.release()
