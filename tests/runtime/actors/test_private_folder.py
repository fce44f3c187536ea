"""Private folders: whose they are, and what outlives its owner."""

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors import private_folder
from raydix.runtime.actors.private_folder import PrivateFolder

OWNER = """
import sys
from pathlib import Path
from raydix.runtime.actors import private_folder
private_folder._ROOT = Path(sys.argv[1])
folder = private_folder.PrivateFolder()
print(folder.path, flush=True)
sys.stdin.read()
"""
"""Holds a folder below its argument until its standard input ends."""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_folder, "_ROOT", tmp_path)
    return tmp_path


def test_folder_is_closed_to_others_and_goes_with_its_removal(root: Path) -> None:
    folder = PrivateFolder()
    assert Path(folder.path).stat().st_mode & 0o777 == 0o700
    folder.remove()
    folder.remove()
    assert list(root.iterdir()) == []


def test_a_folder_that_cannot_be_locked_is_an_error_and_not_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a full disk, where a folder can be made and no file in it.
    monkeypatch.setattr(private_folder, "_LOCK", "x" * 300)
    with pytest.raises(ConfigError, match=r"no folder can be made .*File name too long"):
        PrivateFolder()
    assert list(root.iterdir()) == []


def test_killed_owner_leaves_a_folder_which_the_next_one_removes(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())

        PrivateFolder().remove()
        assert left.exists(), "its owner lives, whatever its process id says here"
        owner.kill()

    PrivateFolder().remove()
    assert not left.exists()


def test_living_owner_is_known_by_its_lock_though_its_process_id_means_nothing_here(
    root: Path,
) -> None:
    folder = PrivateFolder()
    renamed = root / "raydix-4194304-elsewhere"
    Path(folder.path).rename(renamed)
    PrivateFolder().remove()
    assert renamed.exists()


@pytest.mark.parametrize(
    "name",
    ["raydix-2024-cache", "raydix-l3", pytest.param(f"raydix-{os.getpid()}-mine", id="own")],
)
def test_folder_that_was_not_made_here_is_not_removed(root: Path, name: str) -> None:
    other = root / name
    other.mkdir(mode=0o700)
    PrivateFolder().remove()
    assert other.exists()


def spoil_mode(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o755)


def spoil_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(folder).st_uid + 1)


def spoil_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(target)


@pytest.mark.parametrize("spoil", [spoil_mode, spoil_owner, spoil_link])
def test_folder_that_another_user_may_have_made_is_not_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch, spoil: object
) -> None:
    folder = PrivateFolder()
    folder.abandon()
    assert callable(spoil)
    spoil(Path(folder.path), monkeypatch)
    PrivateFolder()
    assert Path(folder.path).exists()


def test_folder_that_is_removed_before_its_lock_is_taken_is_made_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, num_removed = fcntl.flock, [0]

    def remove_and_lock(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not num_removed[0]:
            num_removed[0] += 1
            private_folder.shutil.rmtree(next(root.iterdir()))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    folder = PrivateFolder()
    assert num_removed == [1]
    assert [str(path) for path in root.iterdir()] == [folder.path]


def test_folder_whose_owner_is_about_to_lock_it_is_not_taken_from_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who removes a folder keeps its lock meanwhile: its owner then sees that it is gone."""
    left = PrivateFolder()
    left.abandon()
    rmtree, was_held = private_folder.shutil.rmtree, []

    def look_and_remove(path: Path, ignore_errors: bool) -> None:
        with open(Path(path, "owner.lock"), "rb") as lock, contextlib.suppress(BlockingIOError):
            was_held.append(True)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            was_held[-1] = False
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(private_folder.shutil, "rmtree", look_and_remove)
    PrivateFolder()
    assert was_held == [True]
    assert not Path(left.path).exists()
