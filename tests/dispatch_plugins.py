"""Plugins of dispatch as an installed package brings them: entry points in a folder's metadata."""

from pathlib import Path

from raydix.moe.dispatch.entry_points import ENTRY_POINT_GROUP


def install_plugins(folder: Path) -> None:
    """Bring three to whoever has the folder on its path: DeepEP by the name of `pigeon`, `stork`,
    which is no library, and `dodo`, whose module is not there.
    """
    metadata = folder / "pigeons-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\n"
        "pigeon = raydix.moe.dispatch.library:DEEPEP\n"
        "stork = raydix.moe.dispatch.library:find_library\n"
        "dodo = no_such_module:DODO\n"
    )
