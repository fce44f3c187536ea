"""Which library of a backend is missing, and what to do about it."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import TypeAdapter

from raydix.runtime.config import storage_libraries
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.config.storage_libraries import missing_library
from tests.storage_plugins import install_storage_plugins

SECTION: TypeAdapter[L3Section] = TypeAdapter(L3Section)


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is installed."""
    monkeypatch.setattr(storage_libraries.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("section", "package", "remedy"),
    [
        ({"backend": "s3", "bucket": "b"}, "obstore", "pip install 'raydix[s3]'."),
        (
            {"backend": "mooncake", "master": "h:1"},
            "mooncake",
            "pip install 'raydix[mooncake]', and libibverbs1 from the system's packages.",
        ),
        ({"backend": "aibrix", "path": "x"}, "aibrix_kvcache", "pip install raydix[aibrix]."),
    ],
)
def test_what_is_missing_is_named_with_the_extra_that_brings_it(
    nothing: None, monkeypatch: pytest.MonkeyPatch, section: Any, package: str, remedy: str
) -> None:
    monkeypatch.delitem(sys.modules, package, raising=False)
    missing = missing_library(SECTION.validate_python(section))

    assert missing is not None
    assert missing.startswith(f"cache.l3.backend is {section['backend']!r}, and its library ")
    assert f" {package} is not installed. " in missing
    assert missing.endswith(remedy)

    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    assert missing_library(SECTION.validate_python(section)) is None


def test_backends_without_a_library_miss_nothing(nothing: None) -> None:
    for section in ({"backend": "file", "path": "x"}, {"backend": "redis"}, {"backend": "fake"}):
        assert missing_library(SECTION.validate_python(section)) is None


def test_a_factory_that_no_package_brings_is_missed_by_its_name() -> None:
    missing = missing_library(SECTION.validate_python({"backend": "plugin", "name": "none_such"}))

    assert missing is not None
    assert missing.startswith("cache.l3.name is 'none_such'; expected an entry point of group ")


def test_a_plugin_with_keys_of_its_own_is_looked_for_too(
    nothing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_storage_plugins(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    section = SECTION.validate_python({"backend": "tape", "drive": "redis://x"})

    assert missing_library(section) is None  # its library is a module of Python, and imported
    monkeypatch.delitem(sys.modules, "json")
    assert "buy it" in str(missing_library(section))
