"""A folder of artefacts on its way to another machine. Imports no Triton."""

import io
import tarfile
from pathlib import Path


def pack(folder: Path) -> bytes:
    """All artefacts of a folder, to be sent to another machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Write what `pack` has read."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
