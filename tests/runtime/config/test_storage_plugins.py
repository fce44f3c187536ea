"""Sections `cache.l3` of plugins are read, refused, written and hidden as Raydix's own are."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.config.loading import load_config, replace_l3
from raydix.runtime.config.values import WITH_SECRETS
from raydix.runtime.storage.backends.fake import FakeBackend
from raydix.runtime.storage.create import create_backend
from tests.storage_plugins import install_storage_plugins

TAPE = {"backend": "tape", "drive": "scsi://me:secret@0", "max_bytes": "1MiB"}


@pytest.fixture
def _plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_storage_plugins(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def load(l3: Any) -> EngineConfig:
    return load_config({"model": {"path": "/x"}, "cache": {"l3": l3}})


def refusal(l3: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(l3)
    return str(caught.value)


@pytest.mark.usefixtures("_plugins")
def test_its_keys_are_those_of_the_configuration() -> None:
    config = load(TAPE)
    section = config.cache.l3
    assert section is not None
    assert (section.model_dump()["max_bytes"], section.model_dump()["speed"]) == (2**20, 1)

    assert load_config(config) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert replace_l3(config, {**TAPE, "speed": 7}).cache.l3 != section
    backend = create_backend(section)
    assert isinstance(backend, FakeBackend)
    assert backend.stats()["max_bytes"] == 2**20


@pytest.mark.usefixtures("_plugins")
def test_what_is_written_of_it_has_its_secrets_for_other_processes_alone() -> None:
    config = load(TAPE)
    assert "secret" not in repr(config)
    assert "secret" not in config.model_dump_json()
    section = config.cache.l3
    assert section is not None

    text = section.model_dump_json(context=WITH_SECRETS)
    assert TypeAdapter(L3Section).validate_json(text) == section
    assert "secret" in config.model_dump_json(context=WITH_SECRETS)


@pytest.mark.usefixtures("_plugins")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"drive": None}, "cache.l3.drive is None; expected"),
        ({"sped": 3}, "cache.l3.sped is not a known key. Did you mean cache.l3.speed?"),
        ({"url": "h"}, "cache.l3.url is a key of the backends redis, not of tape. Leave it out"),
        ({"speed": "fast"}, "cache.l3.speed is 'fast'; expected"),
        ({"backend": "file", "speed": 1}, "cache.l3.speed is a key of the backends tape, not of"),
        ({"backend": "tap"}, "Did you mean 'tape'?"),
        (
            {"backend": "twin"},
            "names tape_of_tests:TAPE; expected a StoragePlugin for this backend",
        ),
        ({"backend": "stork"}, "names tape_of_tests:FakeBackend; expected a StoragePlugin"),
        ({"backend": "dodo"}, "cannot be loaded (no_such_module:DODO: ModuleNotFoundError: No"),
        ({"backend": "crash"}, "cannot be loaded (crash_of_tests:CRASH: TypeError: unsupported"),
        ({"backend": "loose"}, "names tape_of_tests:LOOSE; expected a StoragePlugin"),
        ({"backend": "mute"}, "section is a StoreSection with backend: Literal['mute']"),
        ({"backend": "made"}, "names tape_of_tests:MADE; expected a StoragePlugin"),
    ],
)
def test_what_is_wrong_with_it_is_named(change: dict[str, Any], words: str) -> None:
    assert words in refusal({**TAPE, **change})


@pytest.mark.usefixtures("_plugins")
def test_a_key_that_it_needs_is_missed() -> None:
    assert "cache.l3.drive is missing and has no default." in refusal({"backend": "tape"})


def test_a_plugin_that_is_missing_is_refused_with_those_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cache.l3.backend is 'tape'; expected 'file', 'redis'" in refusal(TAPE)

    install_storage_plugins(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    told = refusal({"backend": "crow"})
    assert "'file', 'redis', 's3', 'mooncake', 'fake', 'plugin', or the name of an instal" in told
    assert all(name in told for name in ("crash", "dodo", "stork", "tape", "twin"))
    assert "Is the package installed that brings it?" in told


def test_a_node_without_the_plugin_says_so(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        install_storage_plugins(tmp_path / "site")
        patch.syspath_prepend(str(tmp_path / "site"))
        section = load(TAPE).cache.l3
    assert section is not None
    with pytest.raises(ConfigError, match=r"'tape', a plugin that is not installed here"):
        create_backend(section)


def test_the_schema_accepts_keys_beside_the_name_of_a_plugin_and_of_no_other() -> None:
    validator = Draft202012Validator(EngineConfig.model_json_schema())

    def accepts(l3: dict[str, Any]) -> bool:
        return validator.is_valid({"model": {"path": "x"}, "cache": {"l3": l3}})

    assert accepts({"backend": "file", "path": "x"})
    assert accepts(TAPE)
    assert not accepts({"backend": "file", "path": "x", "speed": 1})
    assert not accepts({"path": "x"})
