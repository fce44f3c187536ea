"""Plugins of L3 with keys of their own, as an installed package brings them."""

from pathlib import Path

from raydix.runtime.config.storage_plugins import ENTRY_POINT_GROUP

_CODE = """
from typing import Literal

from raydix.runtime.config.l3 import BoundedL3Section
from raydix.runtime.config.storage_plugins import ClientLibrary, StoragePlugin
from raydix.runtime.config.values import SecretUrl
from raydix.runtime.storage.backends.fake import FakeBackend


class TapeL3Section(BoundedL3Section):
    backend: Literal["tape"]
    drive: SecretUrl
    speed: int = 1


TAPE = StoragePlugin(
    section=TapeL3Section,
    library=ClientLibrary(
        package="json", statement="import json", remedy="buy it", needs="a drive"
    ),
    load_factory=lambda: lambda section: FakeBackend(section.max_bytes),
)
"""


def install_storage_plugins(folder: Path) -> None:
    """Bring some to whoever has the folder on its path: `tape`, whose section has a required key
    `drive`, a secret, and `speed`; `stork`, which is no plugin, `twin`, which is that of `tape`,
    and `dodo`, whose module is not there.
    """
    metadata = folder / "tapes-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "tape_of_tests.py").write_text(_CODE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tapes\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\n"
        "tape = tape_of_tests:TAPE\n"
        "twin = tape_of_tests:TAPE\n"
        "stork = tape_of_tests:FakeBackend\n"
        "dodo = no_such_module:DODO\n"
    )
