"""What this user's L2s take of a node's memory, noted so that each note ends with its process.

A file in the folder of the user's engines is held by the L2 that it speaks of, and before that by
whoever makes this L2. Its lock ends with its holder, so nothing is counted of who was killed.
"""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, fields

from raydix.runtime.actors.engine_record import user_folder
from raydix.runtime.actors.lock_file import LockFile, LockHeld, read_if_held
from raydix.runtime.actors.supervision.node_share import L2Claim

_SUFFIX = ".l2-bytes"
_TURN = ".l2-turn"
_NODE_DIGITS = 16
_NUM_ATTEMPTS = 5
_RETRY_S = 0.02


@contextlib.contextmanager
def taking_turns(node: str) -> Iterator[None]:
    """Let nobody else claim meanwhile, who has not seen what is claimed here."""
    fd = os.open(
        user_folder() / f"{_short(node)}{_TURN}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def l2_claims(node: str) -> list[L2Claim]:
    """What living L2s, and those that are being made, take of a node."""
    found: dict[str, L2Claim] = {}
    for path in sorted(user_folder().glob(f"{_short(node)}-*{_SUFFIX}")):
        content = read_if_held(str(path))
        if not content:
            continue
        values = json.loads(content)
        # Another version of Raydix may write more. Its maker holds it, too, until the L2 does.
        claim = L2Claim(**{field.name: values.get(field.name) for field in fields(L2Claim)})
        found[claim.name] = claim
    return list(found.values())


def hold_claim(claim: L2Claim) -> LockFile:
    """Claim memory for as long as this process lives, or until the file is removed.

    Removes the files of those that were killed.
    """
    folder = user_folder()
    for other in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(LockHeld, OSError):
            LockFile(str(other)).remove()
    file = _lock(str(folder / f"{_short(claim.node)}-{claim.name}-{secrets.token_hex(4)}{_SUFFIX}"))
    file.write(json.dumps(asdict(claim)).encode())
    return file


def _lock(path: str) -> LockFile:
    for _ in range(_NUM_ATTEMPTS):
        # Who only looks whether the lock is held has it for a moment.
        with contextlib.suppress(LockHeld):
            return LockFile(path)
        time.sleep(_RETRY_S)
    raise LockHeld(path)


def _short(node: str) -> str:
    return node[:_NODE_DIGITS]
