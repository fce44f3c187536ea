"""Plugins of dispatch, which other packages bring as entry points."""

from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.moe.dispatch.library import DEEPEP, find_library, library_names
from tests.dispatch_plugins import install_plugins


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugins(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plugins")
def test_an_installed_plugin_is_found_by_its_name() -> None:
    assert {"deepep", "pigeon", "stork", "dodo"} <= set(library_names())
    assert find_library("pigeon") is DEEPEP
    assert find_library("deepep") is DEEPEP


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("crow", r"'crow'; expected deepep or an entry point of group raydix\.dispatch \(.*pigeon"),
        ("dodo", "'dodo' cannot be loaded: No module named 'no_such_module'"),
        ("stork", "'stork' names a function; expected a raydix"),
    ],
)
def test_what_is_no_plugin_is_refused_with_what_there_is(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_library(name)
