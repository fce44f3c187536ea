"""The plugins of plugins/storage as entry points, configurations and their document have them."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.plugins.storage import hf3fs
from raydix.plugins.storage.aibrix import AibrixBackend
from raydix.plugins.storage.backends import AIBRIX, HF3FS, NIXL
from raydix.plugins.storage.hf3fs import Hf3fsBackend
from raydix.plugins.storage.mounts import find_mounts, require_mount
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.storage_plugins import ENTRY_POINT_GROUP, backend_of, find_plugin
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.create import create_backend
from tests.plugins.storage.hf3fs_emulator import UsrbioEmulator
from tests.runtime.config.allowed_values import allowed_values

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = {"aibrix": AIBRIX, "hf3fs": HF3FS, "nixl": NIXL}


def test_each_is_an_entry_point_of_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = project["entry-points"][ENTRY_POINT_GROUP]

    found = {
        name: EntryPoint(name, value, ENTRY_POINT_GROUP).load() for name, value in table.items()
    }

    assert found == PLUGINS
    assert all(backend_of(plugin.section) == name for name, plugin in found.items())


def test_each_is_installed() -> None:
    assert {name: find_plugin(name) for name in PLUGINS} == PLUGINS


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"backend": "nixl", "path": "l3", "plugin_options": {"use_aio": "true"}}, FileBackend),
        ({"backend": "aibrix", "path": "l3", "ttl_s": 60}, AibrixBackend),
        ({"backend": "hf3fs", "path": "l3", "max_bytes": "1MiB"}, Hf3fsBackend),
    ],
)
def test_backends_are_made_from_configuration(
    values: Mapping[str, Any], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hf3fs, "_import_usrbio", lambda: UsrbioEmulator(tmp_path))
    section = load_config({"model": {"path": "/x"}, "cache": {"l3": values}}).cache.l3

    assert section is not None
    assert section.model_dump()["path"] == str(tmp_path / "l3")
    assert isinstance(create_backend(section), kind)


def test_keys_of_the_others_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache\.l3\.ttl_s is a key of .*aibrix, not of nixl"):
        load_config(
            {"model": {"path": "/x"}, "cache": {"l3": {"backend": "nixl", "path": "x", "ttl_s": 3}}}
        )


def test_the_arena_has_a_name_only_where_3fs_maps_it(tmp_path: Path) -> None:
    def arena_folder(backend: str) -> str | None:
        l3 = {"backend": backend, "path": str(tmp_path)}
        return load_config({"model": {"path": "/x"}, "cache": {"l3": l3}}).arena_folder

    assert arena_folder("hf3fs") == "/dev/shm"
    assert [arena_folder(each) for each in ("file", "nixl", "aibrix")] == [None] * 3


def test_a_configuration_is_read_without_adapters_and_libraries() -> None:
    code = (
        "import sys\n"
        "from raydix.runtime.config.loading import load_config\n"
        "for backend in ('nixl', 'aibrix', 'hf3fs'):\n"
        "    l3 = {'backend': backend, 'path': '/l3'}\n"
        "    load_config({'model': {'path': '/x'}, 'cache': {'l3': l3}})\n"
        "print(*(each for each in sys.modules if each.startswith('raydix.plugins.storage.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {
        "raydix.plugins.storage.backends",
        "raydix.plugins.storage.sections",
    }


def test_the_document_tells_of_every_key_what_it_may_be() -> None:
    text = (ROOT / "plugins/storage/README.md").read_text()
    keys = text.partition("## Keys")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| ", keys, re.M)
    assert dict(rows) == allowed_values(NIXL.section, AIBRIX.section, HF3FS.section)


def test_3fs_needs_a_mount_and_says_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "/dev/vda / ext4 rw 0 0\n"
    assert find_mounts(table) == []
    mounts = tmp_path / "mounts"
    mounts.write_text(table)
    with pytest.raises(SystemExit, match=r"nothing of type fuse\.hf3fs is mounted"):
        require_mount(mounts)

    mounts.write_text(f"{table}hf3fs.stage /3fs fuse.hf3fs rw 0 0\n")
    assert find_mounts(mounts.read_text()) == ["/3fs"]
    require_mount(mounts)
    assert capsys.readouterr().out == "mounted at /3fs\n"
