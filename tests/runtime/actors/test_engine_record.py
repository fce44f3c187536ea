"""Records of engines: who may be believed, who has a name, and that it ends with its owner."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors import engine_record
from raydix.runtime.actors.engine_record import (
    EngineName,
    EngineRecord,
    find_record,
    require_free_name,
    running_names,
)

RECORD = EngineRecord(
    control_address="unix:/somewhere", client_address="unix:/nearby", secret=b"s3cret"
)
OWNER = """
import sys
from pathlib import Path
from raydix.runtime.actors import engine_record
engine_record._ROOT = Path(sys.argv[1])
name = engine_record.EngineName("mine")
record = engine_record.EngineRecord(
    control_address="unix:/there", client_address="unix:/there", secret=b"theirs"
)
name.publish(record)
print("up", flush=True)
sys.stdin.read()
"""
"""The program has the name `mine` until its standard input ends."""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engine_record, "_ROOT", tmp_path)
    return tmp_path


def folder_of(root: Path) -> Path:
    return root / f"raydix-user-{os.geteuid()}"


def test_what_was_published_is_found_until_the_name_is_released(root: Path) -> None:
    name = EngineName("mine")
    assert find_record("mine") is None
    name.publish(RECORD)
    assert find_record("mine") == RECORD
    assert find_record("other") is None
    name.release()
    name.release()
    assert find_record("mine") is None
    assert list(folder_of(root).iterdir()) == []


def test_nobody_else_may_read_a_record(root: Path) -> None:
    EngineName("mine").publish(RECORD)
    folder = folder_of(root)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o077 for path in folder.iterdir()] == [0]


def test_second_engine_of_a_name_is_refused_until_the_first_has_ended() -> None:
    first = EngineName("mine")
    for refuse in (lambda: EngineName("mine"), lambda: require_free_name("mine", patience_s=0.0)):
        with pytest.raises(ConfigError, match=r"The name mine is taken.*--connect mine"):
            refuse()
    EngineName("other")
    require_free_name("third", patience_s=0.0)

    first.release()
    require_free_name("mine", patience_s=0.0)
    EngineName("mine")


def test_a_wait_for_a_name_is_told(caplog: pytest.LogCaptureFixture) -> None:
    EngineName("mine")

    with pytest.raises(ConfigError, match="The name mine is taken"):
        require_free_name("mine", patience_s=0.2)

    [told] = caplog.messages
    assert told == "an engine has the name mine; waiting up to 0.2 s, as it may be ending"


def test_killed_owner_loses_its_name_and_its_record(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        found = find_record("mine")
        assert found is not None
        assert found.control_address == "unix:/there"
        owner.kill()

    assert find_record("mine") is None
    assert [path.name for path in folder_of(root).iterdir()] == ["mine.engine"]
    other = EngineName("other")
    assert [path.name for path in folder_of(root).iterdir()] == ["other.engine"]
    other.release()

    name = EngineName("mine")
    assert find_record("mine") is None, "what the dead one wrote is void"
    name.publish(RECORD)
    assert find_record("mine") == RECORD


def test_record_that_nobody_holds_is_not_believed(root: Path) -> None:
    EngineName("mine").release()
    (folder_of(root) / "mine.engine").write_bytes(RECORD.encode())
    assert find_record("mine") is None


def spoil_mode(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)


def spoil_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.lstat(folder)
    values = list(stat)
    values[4] = stat.st_uid + 1
    monkeypatch.setattr(os, "lstat", lambda path: os.stat_result(values))


def spoil_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.symlink_to(folder.rename(folder.with_name("elsewhere")))


@pytest.mark.parametrize("spoil", [spoil_mode, spoil_owner, spoil_link])
def test_folder_that_another_user_may_have_made_is_neither_believed_nor_used(
    root: Path, monkeypatch: pytest.MonkeyPatch, spoil: object
) -> None:
    EngineName("mine").publish(RECORD)
    assert callable(spoil)
    spoil(folder_of(root), monkeypatch)
    for use in (lambda: find_record("mine"), lambda: EngineName("other")):
        with pytest.raises(ConfigError, match="must be a folder of this user with mode 0700"):
            use()


@pytest.mark.parametrize("name", ["../escape", "a/b", ".", "ü" * 10, "with space"])
def test_any_name_stays_within_the_folder(root: Path, name: str) -> None:
    EngineName(name).publish(RECORD)
    assert find_record(name) == RECORD
    assert [path.name for path in root.iterdir()] == [folder_of(root).name]
    assert len(list(folder_of(root).iterdir())) == 1


def test_only_living_engines_are_listed_by_their_names(root: Path) -> None:
    engines = [EngineName(name) for name in ("mine", "a b/../üc")]
    EngineName("gone").release()
    assert running_names() == ["a b/../üc", "mine"]

    for engine in engines:
        engine.release()
    assert running_names() == []


@pytest.mark.parametrize("name", ["", "n" * 201])
def test_a_name_that_cannot_be_a_file_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 200"):
        EngineName(name)


@pytest.mark.parametrize("name", [None, 5, b"x", "a\nb", "\x1b[2J", "\ud800"])
def test_a_name_that_no_line_could_show_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"name is .*; expected printable text"):
        EngineName(name)


@pytest.mark.parametrize("content", [b"", b"{", b"5", b"{}", b'{"secret": 5}', b"[" * 60_000])
def test_half_a_record_is_none(root: Path, content: bytes) -> None:
    name = EngineName("mine")
    next(folder_of(root).iterdir()).write_bytes(content)
    assert find_record("mine") is None
    name.release()
