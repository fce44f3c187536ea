"""The backend of docs/writing_a_backend.md, as an installed package would bring it."""

import re
import sqlite3
from pathlib import Path

import pytest

from raydix.runtime.config.l3 import PluginL3Section
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.create import create_backend
from tests.runtime.storage.stores import NAMESPACE, Store, make_key

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/writing_a_backend.md"


def install_documented_package(folder: Path) -> str:
    """Write a package with the document's code; returns the name of its entry point."""
    [code] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    [table] = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.S)
    [[name, target]] = re.findall(r'(\w+) = "(.*)"', table)
    metadata = folder / "your_package-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{target.partition(':')[0]}.py").write_text(code)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: your-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[raydix.storage]\n{name} = {target}\n")
    return str(name)


class PluginStore(Store):
    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    def make(self, max_bytes: int | None = None) -> StorageBackend:
        if max_bytes is not None:
            pytest.skip("the documented backend has no bound")
        return create_backend(
            PluginL3Section(backend="plugin", name=self.name, options={"path": str(self.path)})
        )

    def _run(self, query: str, *values: object) -> list[tuple[bytes]]:
        with sqlite3.connect(self.path) as database:
            return database.execute(query, values).fetchall()

    def _name(self, name: int) -> str:
        return f"{NAMESPACE.hex}/0/{make_key(name).hex()}"

    def raw(self, name: int) -> bytes | None:
        rows = self._run("select data from objects where name = ?", self._name(name))
        return rows[0][0] if rows else None

    def set_raw(self, name: int, data: bytes) -> None:
        self._run("insert or replace into objects values (?, ?)", self._name(name), data)
