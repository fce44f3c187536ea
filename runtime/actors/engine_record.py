"""How processes of one user on one host find an engine by its name, without Ray.

A folder that belongs to the user alone has a file for each engine. The Supervisor holds the file's
lock, so that the file ends with it, and writes there how to call it. What other users put into the
temporary folder is not believed.
"""

import contextlib
import itertools
import json
import logging
import os
import stat
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.lock_file import LockFile, LockHeld, read_if_held

logger = logging.getLogger(__name__)

_ROOT = Path("/tmp")  # not the user's TMPDIR, which may differ between the user's processes
_MODE = 0o700
_MAX_NAME_BYTES = 200
_SUFFIX = ".engine"
_NUM_ATTEMPTS = 5
_RETRY_S = 0.02
NAME_RELEASE_S = 5.0
"""How long a Supervisor may still live after the process that started it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """Where an engine is reached, and the secret that it asks for."""

    control_address: str
    """The address at which the engine's Supervisor answers."""
    client_address: str
    """The address at which the engine takes requests."""
    secret: bytes = field(repr=False)
    tls: TlsFiles | None = None
    """The files of TLS, for addresses of TCP; None: there is no TLS."""

    def encode(self) -> bytes:
        """The record as it is written, for processes of this host, which need no TLS."""
        return json.dumps(
            {
                "control_address": self.control_address,
                "client_address": self.client_address,
                "secret": self.secret.hex(),
            }
        ).encode()


class EngineName:
    """Owns: an engine's name among those of this user on this host, until `release`.

    It ends with this process at the latest.
    """

    def __init__(self, name: str) -> None:
        """Raises ConfigError if a living engine has the name, or if it cannot be one.

        Removes the records of engines that have died.
        """
        path = _path_of(name)
        _remove_dead(Path(path).parent)
        self._file = _lock(path, name)

    def publish(self, record: EngineRecord) -> None:
        """Let others find the engine. Once."""
        self._file.write(record.encode())

    def release(self) -> None:
        """Let another engine have the name. May be called twice."""
        self._file.remove()


def find_record(name: str) -> EngineRecord | None:
    """The record of this user's engine of this name; None if there is none on this host.

    Raises ConfigError if the folder of records is not the user's alone.
    """
    content = read_if_held(_path_of(name))
    return None if content is None else _decode(content)


def running_names() -> list[str]:
    """This user's engines on this host, those that still start among them."""
    found = sorted(user_folder().glob(f"*{_SUFFIX}"))
    held = [path for path in found if read_if_held(str(path)) is not None]
    return [urllib.parse.unquote(path.name.removesuffix(_SUFFIX)) for path in held]


def require_free_name(name: str, patience_s: float = NAME_RELEASE_S) -> None:
    """Raise ConfigError if an engine has this name, and keeps it for `patience_s`."""
    give_up_s = time.monotonic() + patience_s
    for attempt in itertools.count(1):
        if read_if_held(_path_of(name)) is None:
            return
        if time.monotonic() > give_up_s:
            raise ConfigError(_taken(name))

        # Not at once: who only looks, as others may, has it for a moment.
        if attempt == _NUM_ATTEMPTS:
            logger.warning(
                "an engine has the name %s; waiting up to %g s, as it may be ending",
                name,
                patience_s,
            )
        time.sleep(_RETRY_S)


def _remove_dead(folder: Path) -> None:
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(LockHeld, OSError):
            LockFile(str(path)).remove()


def _lock(path: str, name: str) -> LockFile:
    for _ in range(_NUM_ATTEMPTS):
        try:
            return LockFile(path)
        except LockHeld:
            # Who only looks whether the lock is held has it for a moment.
            time.sleep(_RETRY_S)
    raise ConfigError(_taken(name))


def _taken(name: str) -> str:
    return (
        f"The name {name} is taken: an engine of this user has it on this host. Give this one "
        f"another (--name, or name=... in Python), use the running one (--connect {name}, or "
        "AsyncLLM.connect), or stop that."
    )


def _decode(content: bytes) -> EngineRecord | None:
    """What `publish` wrote; None for less: its writer has just begun."""
    try:
        values = json.loads(content)
        secret = bytes.fromhex(values["secret"])
        return EngineRecord(
            control_address=str(values["control_address"]),
            client_address=str(values["client_address"]),
            secret=secret,
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _path_of(name: str) -> str:
    # A name stands in lines of the log and in commands to copy; a str of half a character in none.
    # Behind an @ the command line expects the address where an engine listens.
    if not isinstance(name, str) or not name.isprintable() or "@" in name:
        raise ConfigError(
            f"an engine's name is {name!r}; expected printable text without @. Choose another one."
        )
    file_name = urllib.parse.quote(name, safe="")
    if not 0 < len(file_name) <= _MAX_NAME_BYTES:
        raise ConfigError(
            f"an engine's name has {len(file_name)} bytes as a file's name; expected 1 to "
            f"{_MAX_NAME_BYTES}. Choose another one."
        )
    return str(user_folder() / f"{file_name}{_SUFFIX}")


def user_folder() -> Path:
    """This user's folder of records, which nobody else may enter. Raises ConfigError."""
    folder = _ROOT / f"raydix-user-{os.geteuid()}"
    try:
        folder.mkdir(mode=_MODE)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}") from error

    # Anybody may put something there.
    found = os.lstat(folder)
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or stat.S_IMODE(found.st_mode) != _MODE:
        raise ConfigError(
            f"{folder} must be a folder of this user with mode 0700, as engines are found there; "
            f"it has owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}. Remove it."
        )
    return folder
