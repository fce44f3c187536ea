"""Short folders for sockets and for a private cluster's files, and the removal of those that a killed owner left."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

_ROOT = Path("/tmp")  # not the user's TMPDIR: a unix socket's path has 107 bytes at most
_PREFIX = "raydix-"


def make_private_folder() -> str:
    """Make a folder that this process owns and nobody else may enter; first remove those of dead owners."""
    for folder in _ROOT.glob(f"{_PREFIX}*-*"):
        if not _is_owned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_ROOT)


def remove_private_folder(folder: str) -> None:
    """Remove a folder and all in it."""
    shutil.rmtree(folder, ignore_errors=True)


def private_folders() -> list[Path]:
    """Folders of living owners, newest first."""
    times: list[tuple[float, Path]] = []
    for folder in _ROOT.glob(f"{_PREFIX}*-*"):
        with contextlib.suppress(OSError):
            if _is_owned(folder):
                times.append((folder.stat().st_mtime, folder))
    return [folder for _, folder in sorted(times, reverse=True)]


def _is_owned(folder: Path) -> bool:
    owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
    return not owner.isdecimal() or os.path.exists(f"/proc/{owner}")
