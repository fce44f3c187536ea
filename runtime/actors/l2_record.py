"""How the engines of one user find the L2 of their node, and that there is one of each kind.

A file in the folder of the user's engines has the L2's name: its node, and all that decides which
pages it may hold. The process that owns the L2 holds the file's lock, so that the name ends with
it, and writes there how it is called.
"""

import contextlib
import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.actors.engine_record import user_folder
from raydix.runtime.actors.lock_file import LockFile, LockHeld, read_if_held
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.messages.codec import SCHEMA
from raydix.runtime.storage.namespace import Namespace, make_namespace
from raydix.version import VERSION

logger = logging.getLogger(__name__)

_SUFFIX = ".l2"
_NODE_DIGITS = 16
_SPOKEN = f"{VERSION}-{SCHEMA[:4].hex()}"
"""The version of Raydix, and of its messages: those of a checkout change between releases."""
_NUM_ATTEMPTS = 5
_RETRY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Record:
    """How an L2 is reached."""

    name: str
    """What people call it, such as `l2-3fa5b81c`."""
    actor: str
    """The name of its Ray actor."""
    pid: int
    control_address: str
    """Where it answers control calls."""
    secret: bytes = field(repr=False)


def l2_path(node: str, namespace: Namespace, layout: KvLayout) -> Path:
    """The file of the L2 of a node for pages of this namespace.

    Engines of another version of Raydix have another one, as they speak otherwise.
    """
    parts = (node[:_NODE_DIGITS], _SPOKEN, _layout_digits(layout), namespace.hex)
    return user_folder() / ("-".join(parts) + _SUFFIX)


def is_layout_on(node: str, layout: KvLayout) -> bool:
    """Whether the node has an L2 with pages of this layout, of whatever weights."""
    pattern = f"{node[:_NODE_DIGITS]}-{_SPOKEN}-{_layout_digits(layout)}-*{_SUFFIX}"
    return any(_read(path) is not None for path in user_folder().glob(pattern))


def find_l2(path: Path) -> L2Record | None:
    """The L2 whose file this is; None if nobody has it, or has only just begun."""
    return _read(path)


def l2s_of(node: str | None = None) -> list[L2Record]:
    """This user's L2s on this host; of a node of Ray, if one is given.

    One of another checkout, whose record cannot be read, is left out, and logged.
    """
    pattern = f"{'' if node is None else node[:_NODE_DIGITS]}*{_SUFFIX}"
    found = []
    for path in sorted(user_folder().glob(pattern)):
        try:
            found.append(_read(path))
        except ConfigError as error:
            logger.warning("%s", error)
    return [record for record in found if record is not None]


class L2Name:
    """Owns: the name of an L2, until `release` or the end of this process."""

    def __init__(self, path: Path) -> None:
        """Raises LockHeld if another L2 has it. Removes the files of those that were killed."""
        for other in path.parent.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(LockHeld, OSError):
                LockFile(str(other)).remove()
        self._file = _lock(str(path))

    def publish(self, record: L2Record) -> None:
        """Let engines find the L2. Once."""
        values = {
            "name": record.name,
            "actor": record.actor,
            "pid": record.pid,
            "control_address": record.control_address,
            "secret": record.secret.hex(),
        }
        self._file.write(json.dumps(values).encode())

    def release(self) -> None:
        """Let another L2 have the name. May be called twice."""
        self._file.remove()


def _lock(path: str) -> LockFile:
    for _ in range(_NUM_ATTEMPTS):
        # Who only looks whether the lock is held has it for a moment.
        with contextlib.suppress(LockHeld):
            return LockFile(path)
        time.sleep(_RETRY_S)
    raise LockHeld(path)


def _read(path: Path) -> L2Record | None:
    content = read_if_held(str(path))
    if not content:
        return None
    try:
        values = json.loads(content)
        # Raydix of another checkout may write more.
        return L2Record(
            name=str(values["name"]),
            actor=str(values["actor"]),
            pid=int(values["pid"]),
            control_address=str(values["control_address"]),
            secret=bytes.fromhex(values["secret"]),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{path} is the record of a running L2 that this Raydix cannot read ({error!r}). Stop "
            "it by the raydix that made it."
        ) from error


def _layout_digits(layout: KvLayout) -> str:
    return make_namespace(b"", "", layout).hex
