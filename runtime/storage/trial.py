"""Opening a store and asking it one question, as an engine does when it starts, without an engine.

`python -m raydix.runtime.storage.trial` reads a section `cache.l3` as JSON from its standard input:
a native library may hang or abort whatever process tries it.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from raydix.errors import ConfigError
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.l3 import (
    FolderL3Section,
    L3Section,
)
from raydix.runtime.config.values import WITH_SECRETS
from raydix.runtime.storage.create import create_backend
from raydix.runtime.storage.namespace import make_namespace
from raydix.runtime.storage.worker.worker import ANSWER_S, StorageWorker
from raydix.runtime.tiers.host_arena import HostArena

_IMPORT_S = 45.0
"""The time for a backend's library to be imported."""
_LAYOUT = KvLayout(
    page_size=1,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=1),),
)
_SECTION: TypeAdapter[L3Section] = TypeAdapter(L3Section)


def find_obstacle(section: L3Section, timeout_s: float = _IMPORT_S + ANSWER_S) -> str | None:
    """Why an engine could not use this store from here; None if it could.

    Nothing stays in the store. The question is asked in a process of its own.
    """
    try:
        with _beside(section) as tried:
            text = _try_elsewhere(tried, timeout_s)
            return None if text is None else text.replace(_path_of(tried), _path_of(section))
    except OSError as error:
        return (
            f"cache.l3.path {_path_of(section)} cannot be used: {error.strerror} "
            f"({error.filename}). Set it to a folder that this user can write."
        )


def require_store(section: L3Section) -> None:
    """Open the store and ask it one question. Raises ConfigError that says why that fails."""
    arena = HostArena.create(_LAYOUT, _LAYOUT.host_page_bytes(0))
    worker = StorageWorker(
        create_backend(section), arena, make_namespace(b"", "", _LAYOUT), lambda done: None
    )
    worker.require_answer(ANSWER_S)
    worker.close()
    arena.close()


def _try_elsewhere(section: L3Section, timeout_s: float) -> str | None:
    command = [sys.executable, "-m", "raydix.runtime.storage.trial"]
    try:
        # Not as an argument, which all users see: a URL may hold a password.
        done = subprocess.run(
            command,
            input=section.model_dump_json(context=WITH_SECRETS),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"it has not answered within {timeout_s:g} s"
    if not done.returncode:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"its process ended with {done.returncode}"


@contextlib.contextmanager
def _beside(section: L3Section) -> Iterator[L3Section]:
    """A like store in a folder of its own, removed at the end; a store in no folder is itself.

    Raises OSError if there can be none.
    """
    if not isinstance(section, FolderL3Section):
        yield section
        return

    path = Path(section.path)
    parent = next(each for each in (path, *path.parents) if os.path.lexists(each))
    folder = tempfile.mkdtemp(prefix="raydix-doctor-", dir=parent)
    try:
        yield section.model_copy(update={"path": folder})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _path_of(section: L3Section) -> str:
    return section.path if isinstance(section, FolderL3Section) else section.backend


def main() -> None:
    """Try the section on standard input; the last line of standard error says what failed."""
    status = 0
    try:
        require_store(_SECTION.validate_json(sys.stdin.read()))
    except ConfigError as error:
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
        status = 1
    # A question without an answer would keep the process.
    os._exit(status)


if __name__ == "__main__":
    main()
