"""Keys of a file that changes while the server runs."""

import logging
import os
import pickle
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.server.key_file import LOOK_EVERY_S, KeyFile
from raydix.runtime.server.keys import Access, Caller, Role, Verdict

OLD, NEW = "0123456789abcdef-old", "0123456789abcdef-new"


class World:
    """A key file, and a clock; `replace` writes as an editor does, by renaming."""

    def __init__(self, path: Path) -> None:
        self.now_s = 0.0
        self.path = path
        self._num_changes = 0
        self.replace(f"tenants: {{a: {OLD}}}")
        self.keys = KeyFile(path, lambda: self.now_s)

    def replace(self, text: str, mode: int = 0o600) -> None:
        self._num_changes += 1
        other = self.path.with_suffix(f".{self._num_changes}")
        other.write_text(text)
        other.chmod(mode)
        os.utime(other, ns=(0, self._num_changes))
        other.rename(self.path)

    def judge(self, key: str) -> Caller | Verdict:
        return self.keys.judge(Access.TENANT, key)

    def pass_time(self) -> None:
        self.now_s += LOOK_EVERY_S


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "keys.yaml")


def test_a_changed_file_is_read_again_after_a_moment(world: World) -> None:
    assert world.judge(OLD) == Caller(Role.TENANT, "a")
    world.replace(f"tenants: {{b: {NEW}}}")
    assert world.judge(NEW) is Verdict.UNKNOWN_KEY

    world.pass_time()

    assert world.judge(NEW) == Caller(Role.TENANT, "b")
    assert world.judge(OLD) is Verdict.UNKNOWN_KEY


@pytest.mark.parametrize(
    ("text", "mode"), [("tenants: [", 0o600), ("{}", 0o600), (f"admin: {NEW}", 0o644)]
)
def test_a_file_that_cannot_be_used_leaves_the_former_keys_and_is_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture, text: str, mode: int
) -> None:
    world.replace(text, mode)
    for _ in range(3):
        world.pass_time()
        assert world.judge(OLD) == Caller(Role.TENANT, "a")
        assert world.judge(NEW) is Verdict.UNKNOWN_KEY
    [line] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "the former keys stay in force" in line.getMessage()

    world.replace(f"tenants: {{a: {NEW}}}")
    world.pass_time()
    assert world.judge(NEW) == Caller(Role.TENANT, "a")


def test_a_file_that_is_gone_leaves_the_former_keys(world: World) -> None:
    world.path.unlink()
    world.pass_time()
    assert world.judge(OLD) == Caller(Role.TENANT, "a")


def test_a_server_does_not_start_without_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyFile(tmp_path / "absent.yaml")


def test_replicas_get_a_copy_that_looks_for_itself_when_first_asked(tmp_path: Path) -> None:
    world = World(tmp_path / "keys.yaml")
    pickled = pickle.dumps(KeyFile(world.path))
    copy: KeyFile = pickle.loads(pickled)
    assert copy.judge(Access.TENANT, OLD) == Caller(Role.TENANT, "a")

    world.replace(f"tenants: {{b: {NEW}}}")
    later: KeyFile = pickle.loads(pickled)
    assert later.judge(Access.TENANT, OLD) is Verdict.UNKNOWN_KEY
    assert later.judge(Access.TENANT, NEW) == Caller(Role.TENANT, "b")
