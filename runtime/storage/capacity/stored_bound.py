"""The bound under which a folder's objects were stored: no smaller one deletes them unasked."""

import os
from collections.abc import Mapping
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.storage.capacity.room import Remove, Room
from raydix.runtime.storage.file_modes import Modes

_FILE = "max_bytes"


def open_room(
    folder: Path,
    max_bytes: int | None,
    sizes: Mapping[str, int],
    remove: Remove,
    modes: Modes,
    *,
    eviction: EvictionPolicy,
) -> Room:
    """The room of a folder in which objects are stored already, the least recently used first.

    Evicts what is beyond `max_bytes`. Raises as `agree_on_bound` does.
    """
    agree_on_bound(folder, max_bytes, sum(sizes.values()), modes)
    room = Room(max_bytes, remove, eviction)
    room.add(sizes)
    room.enforce()
    return room


def agree_on_bound(folder: Path, max_bytes: int | None, held_bytes: int, modes: Modes) -> None:
    """Note `max_bytes` in `folder` if it is the largest so far. None notes nothing. Raises OSError.

    Raises ConfigError if the folder holds more than `max_bytes` and was allowed to. Opening it
    would evict all that is beyond the smaller bound, and with it perhaps what another engine has
    collected, if this one got its folder, or a default bound, by mistake. Whoever means it removes
    the file. Without a larger bound on file, the excess is what engines that share a folder have
    added unseen by each other, and it may go.
    """
    if max_bytes is None:
        return
    path = folder / _FILE
    noted = _read(path)
    if noted is not None and noted >= max_bytes:
        if noted > max_bytes and held_bytes > max_bytes:
            raise ConfigError(
                f"cache.l3.path {folder} holds {held_bytes} bytes, stored under "
                f"cache.l3.max_bytes {noted}; with {max_bytes} the engine would delete "
                f"{held_bytes - max_bytes} of them. Set cache.l3.max_bytes to {noted}, or "
                f"cache.l3.path to another folder. To shrink this one, remove {path}."
            )
        return

    # Renamed into place, so that no other engine reads half a number.
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
