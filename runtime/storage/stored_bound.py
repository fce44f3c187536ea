"""The bound under which a folder's objects were stored: no smaller one deletes them unasked."""

import os
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.storage.file_modes import Modes

_FILE = "max_bytes"


def agree_on_bound(folder: Path, max_bytes: int | None, held_bytes: int, modes: Modes) -> None:
    """Note `max_bytes` in `folder` if it is the largest so far. None notes nothing. Raises OSError.

    Raises ConfigError if the folder holds more than `max_bytes` and that was allowed before. The
    least used would go down to the smaller bound as soon as the folder is opened: all but a little
    of what another engine has collected, should this one have been given its folder, or a default,
    by mistake. Who means it says so by removing the file. Without a larger bound on file what is
    beyond `max_bytes` is what engines that share a folder add unseen by each other, and may go.
    """
    if max_bytes is None:
        return
    path = folder / _FILE
    noted = _read(path)
    if noted is not None and noted >= max_bytes:
        if noted > max_bytes and held_bytes > max_bytes:
            raise ConfigError(
                f"cache.l3.path {folder} holds {held_bytes} bytes, stored under "
                f"cache.l3.max_bytes {noted}; with "
                f"{max_bytes} the engine would delete {held_bytes - max_bytes} of them. Set "
                f"cache.l3.max_bytes to "
                f"{noted}, or cache.l3.path to another folder. To shrink this one, remove {path}."
            )
        return

    temporary = folder / f"{_FILE}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = modes.create(str(temporary))
    try:
        os.write(fd, b"%d\n" % max_bytes)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
