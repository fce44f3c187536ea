"""Which storage backends a machine can use."""

import socket
from pathlib import Path

import pytest

from raydix.runtime.cli import doctor_storage
from raydix.runtime.cli.doctor_storage import BackendReport, examine_backends
from raydix.runtime.config.storage_plugins import ClientLibrary
from tests.runtime.storage.plugin_package import install_documented_package
from tests.storage_plugins import install_storage_plugins


def reports() -> dict[str, BackendReport]:
    return {report.name: report for report in examine_backends()}


def library(package: str, statement: str) -> ClientLibrary:
    return ClientLibrary(package=package, statement=statement, remedy="do this", needs="a bucket")


def test_every_backend_is_reported_with_a_reason() -> None:
    found = reports()
    assert {"redis", "s3", "mooncake", "nixl", "aibrix", "hf3fs"} <= set(found)
    assert all(report.detail for report in found.values())


def test_library_that_is_absent_broken_or_there(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = {
        "absent": library("no_such_package", "import no_such_package"),
        "broken": library("json", "raise ImportError('libxyz.so is missing')"),
        "there": library("json", "import json"),
        "tells": library("json", "print('hello'); print('mounted at /3fs')"),
        "aborts": library("json", "import os; os.abort()"),
    }
    monkeypatch.setattr(doctor_storage, "LIBRARIES", libraries)

    found = reports()

    assert found["absent"].detail == "not installed; do this"
    assert found["broken"].detail == "ImportError: libxyz.so is missing; do this"
    assert found["aborts"].detail == "its import ends with -6; do this"
    assert found["there"].detail == "usable, with a bucket"
    assert found["tells"].detail == "usable, with a bucket; mounted at /3fs"
    assert [found[name].is_usable for name in ("absent", "broken", "there", "aborts")] == [
        False,
        False,
        True,
        False,
    ]


def test_library_whose_import_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_storage, "_IMPORT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(
        doctor_storage, "LIBRARIES", {"slow": library("json", "import time; time.sleep(600)")}
    )
    assert "more than" in reports()["slow"].detail


def test_redis_says_whether_a_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(doctor_storage, "_REDIS_ADDRESS", server.getsockname())
        assert reports()["redis"].detail.startswith("usable; a server listens")
    assert "none listens" in reports()["redis"].detail


def test_plugin_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = install_documented_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert reports()[f"plugin {name}"] == BackendReport(
        f"plugin {name}", True, "usable; your_package:SqliteBackend"
    )
    (tmp_path / "your_package.py").write_text("import no_such_module")
    assert (
        reports()[f"plugin {name}"].detail
        == "ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_a_plugin_with_keys_of_its_own_is_reported_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_storage_plugins(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    found = reports()

    assert found["tape"] == BackendReport("tape", True, "usable, with a drive")
    assert not found["dodo"].is_usable
    assert "TypeError: unsupported operand" in found["crash"].detail
    assert "no_such_module" in found["dodo"].detail
