"""The secret of clients on other hosts: where it is found, and that no error shows it."""

import os
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.client_secret import find_secret

SECRET, OTHER = "a" * 32, "b" * 64


def file_with(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_it_is_in_a_file_or_in_the_environment_and_what_is_nearer_counts(tmp_path: Path) -> None:
    path = file_with(tmp_path, f"{SECRET}\n")
    assert find_secret(None, {}) is None
    assert find_secret(path, {}) == SECRET.encode()
    assert find_secret(None, {"RAYDIX_SECRET": OTHER}) == OTHER.encode()
    assert find_secret(None, {"RAYDIX_SECRET_FILE": str(path)}) == SECRET.encode()
    both = {"RAYDIX_SECRET": OTHER, "RAYDIX_SECRET_FILE": "/nowhere"}
    assert find_secret(None, both) == OTHER.encode()
    assert find_secret(path, both) == SECRET.encode()


def test_it_comes_through_a_pipe_if_somebody_writes_to_it(tmp_path: Path) -> None:
    named = tmp_path / "pipe"
    os.mkfifo(named, 0o600)
    with pytest.raises(ConfigError, match="has 0 characters"):
        find_secret(named, {})

    read_end, write_end = os.pipe()
    os.write(write_end, SECRET.encode())
    os.close(write_end)
    assert find_secret(f"/dev/fd/{read_end}", {}) == SECRET.encode()
    os.close(read_end)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        find_secret(file_with(tmp_path, SECRET, mode), {})


@pytest.mark.parametrize("text", ["", "short-secret", "a" * 31, "two words " * 8, "ä" * 40])
def test_a_weak_or_odd_secret_is_refused_and_not_told(tmp_path: Path, text: str) -> None:
    path = file_with(tmp_path, text)
    with pytest.raises(ConfigError, match="32 to 1024 printable") as caught:
        find_secret(path, {})
    assert not text or text.strip() not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        find_secret(tmp_path / "none", {})
