"""Plugins of L3 with keys of their own, as an installed package brings them."""

from pathlib import Path

from raydix.runtime.config.storage_plugins import ENTRY_POINT_GROUP

_CODE = """
from typing import ClassVar, Literal

from raydix.runtime.config.l3 import BoundedL3Section
from raydix.runtime.config.storage_plugins import ClientLibrary, StoragePlugin
from raydix.runtime.config.store_section import StoreSection
from raydix.runtime.config.values import SecretUrl, Section
from raydix.runtime.storage.backends.fake import FakeBackend


class TapeL3Section(BoundedL3Section):
    backend: Literal["tape"]
    drive: SecretUrl
    speed: int = 1


class LooseL3Section(Section):
    backend: Literal["loose"]


class MuteL3Section(StoreSection):
    backend: ClassVar[str] = "mute"


def plugin_of(section):
    return StoragePlugin(
        section=section,
        library=ClientLibrary(
            package="json", statement="import json", remedy="buy it", needs="a drive"
        ),
        load_factory=lambda: lambda section: FakeBackend(section.max_bytes),
    )


TAPE, LOOSE, MUTE = map(plugin_of, (TapeL3Section, LooseL3Section, MuteL3Section))
MADE = plugin_of(TapeL3Section(backend="tape", drive="x"))
"""


def install_storage_plugins(folder: Path) -> None:
    """Bring some to whoever has the folder on its path: `tape`, whose section has a required key
    `drive`, a secret, and `speed`; and some that are refused. `stork` is no plugin, `twin` that of
    `tape`; the section of `loose` is no `StoreSection`, that of `mute` has no key `backend`, that
    of `made` is not a class. The module of `dodo` is not there, and that of `crash` raises.
    """
    metadata = folder / "tapes-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "tape_of_tests.py").write_text(_CODE)
    (folder / "crash_of_tests.py").write_text("CRASH = 1 + None\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tapes\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\n"
        "tape = tape_of_tests:TAPE\n"
        "twin = tape_of_tests:TAPE\n"
        "stork = tape_of_tests:FakeBackend\n"
        "loose = tape_of_tests:LOOSE\n"
        "mute = tape_of_tests:MUTE\n"
        "made = tape_of_tests:MADE\n"
        "dodo = no_such_module:DODO\n"
        "crash = crash_of_tests:CRASH\n"
    )
