"""What a path in the configuration means, to whom."""

from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.paths import (
    HubName,
    model_label,
    require_absolute_l3,
    resolve_l3,
    resolve_model_path,
    resolve_path,
)

JOB = Path("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0a1b2c")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("org/name", HubName("org/name", None)),
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B", None)),
        ("org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name@refs/pr/3", HubName("org/name", "refs/pr/3")),
        ("/org/name", None),
        ("./name", None),
        ("../name", None),
        ("~/name", None),
        ("name", None),
        ("org/name/", None),
        ("org/name/more", None),
        ("org/name@", None),
        ("org/na me", None),
    ],
)
def test_name_on_the_hub_is_told_from_a_path(path: str, name: HubName | None) -> None:
    assert HubName.parse(path) == name
    if name is not None:
        assert str(name) == path


@pytest.mark.parametrize(
    ("path", "resolved"),
    [("l3", "/here/l3"), ("./l3", "/here/l3"), ("../l3", "/here/../l3"), ("/l3", "/l3")],
)
def test_relative_path_starts_at_the_folder_of_whoever_wrote_it(path: str, resolved: str) -> None:
    assert resolve_path(path, Path("/here")) == resolved
    assert resolve_model_path(path, Path("/here")) == resolved


def test_tilde_is_the_home_of_whoever_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert resolve_path("~/l3", Path("/here")) == "/home/ada/l3"


def test_home_of_nobody_is_refused_by_its_path() -> None:
    with pytest.raises(ConfigError, match=r"~nobody-has-this/x begins with the home of a user who"):
        resolve_path("~nobody-has-this/x", Path("/work"))


def test_l3_keeps_all_keys_but_its_path() -> None:
    section = {"backend": "file", "path": "l3", "max_bytes": 7}
    assert resolve_l3(section, Path("/here")) == {**section, "path": "/here/l3"}
    assert resolve_l3({"backend": "redis"}, Path("/here")) == {"backend": "redis"}


def test_l3_that_goes_with_a_submitted_job_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    resolve_l3({"backend": "file", "path": "/var/l3"}, JOB)
    assert not caplog.messages
    resolve_l3({"backend": "file", "path": "l3"}, JOB)
    [warning] = caplog.messages
    assert f"{JOB}/l3" in warning
    assert "absolute path" in warning


def test_model_is_called_by_its_folder_or_its_name_on_the_hub() -> None:
    assert model_label("/models/Qwen3-0.6B") == "Qwen3-0.6B"
    assert model_label("Qwen/Qwen3-0.6B@0123abc") == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("section", ["file", None, 5, ["file"]])
def test_l3_that_is_no_section_is_refused(section: Any) -> None:
    for check in (require_absolute_l3, lambda each: resolve_l3(each, Path("/work"))):
        with pytest.raises(ConfigError, match=r"^cache\.l3 is .*; expected a section"):
            check(section)
