"""Which storage backends this machine can use, and why not the others."""

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from raydix.runtime.storage.create import ENTRY_POINT_GROUP

_IMPORT_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 0.5
_REDIS_ADDRESS = ("127.0.0.1", 6379)
_FUSE_TYPE = "fuse.hf3fs"


@dataclass(frozen=True, slots=True)
class BackendReport:
    """Whether a backend can be used here, and what it needs or lacks."""

    name: str
    is_usable: bool
    detail: str


@dataclass(frozen=True, slots=True)
class _Library:
    """The library that a backend's adapter imports."""

    backend: str
    package: str
    statement: str
    """Fails where the adapter would."""
    remedy: str
    """What to do where the statement fails."""
    needs: str
    """What else the backend needs."""


_START_NIXL = (
    "from nixl._api import nixl_agent as agent, nixl_agent_config as config; "
    "agent('doctor', config(enable_prog_thread=False, backends=[])).create_backend('POSIX', "
    "{'use_uring': 'true'})"
)
_LIBRARIES = (
    _Library(
        "s3", "obstore", "import obstore", "pip install raydix[s3]", "a bucket (cache.l3.bucket)"
    ),
    _Library(
        "mooncake",
        "mooncake",
        "import mooncake.store",
        "pip install raydix[mooncake], and libibverbs1 from the system's packages",
        "a master (cache.l3.master)",
    ),
    _Library(
        "nixl",
        "nixl",
        _START_NIXL,
        "pip install raydix[nixl]; where io_uring is not allowed set cache.l3.plugin_options to "
        "{use_aio: 'true'}",
        "a folder (cache.l3.path); its POSIX plugin starts, with io_uring",
    ),
    _Library(
        "aibrix",
        "aibrix_kvcache",
        "import rocksdict; from aibrix_kvcache.l2.connectors import rocksdb",
        "pip install raydix[aibrix]",
        "a folder for each engine (cache.l3.path)",
    ),
    _Library(
        "hf3fs",
        "hf3fs_fuse",
        "from hf3fs_fuse import io",
        "build hf3fs_fuse and its extension from 3FS, and mount 3FS",
        "a folder on 3FS (cache.l3.path)",
    ),
)


def examine_backends(mounts: Path = Path("/proc/mounts")) -> list[BackendReport]:
    """Try the library of each backend that needs one, in a process of its own."""
    installed = [
        library for library in _LIBRARIES if importlib.util.find_spec(library.package) is not None
    ]
    plugins = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
    errors = _import_errors(
        [*(library.statement for library in installed), *map(_import_of, plugins)]
    )

    reports = [_redis()]
    for library in _LIBRARIES:
        if library not in installed:
            reports.append(
                BackendReport(library.backend, False, f"not installed; {library.remedy}")
            )
            continue
        error = errors.pop(0)
        if error is not None:
            reports.append(BackendReport(library.backend, False, f"{error}; {library.remedy}"))
        elif library.backend == "hf3fs":
            reports.append(_hf3fs(mounts))
        else:
            reports.append(BackendReport(library.backend, True, f"usable, with {library.needs}"))

    # The errors that are left are those of the plugins, which were tried last.
    for point, error in zip(plugins, errors, strict=True):
        detail = f"usable; {point.value}" if error is None else error
        reports.append(BackendReport(f"plugin {point.name}", error is None, detail))
    return reports


def _import_of(point: EntryPoint) -> str:
    return f"import {point.module}"


def _import_errors(statements: Sequence[str]) -> list[str | None]:
    """The last line of each statement's error output; None if it succeeds."""
    # In other processes, all at once: a native library may hang, or abort the process.
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", statement], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for statement in statements
    ]

    errors: list[str | None] = []
    for process in processes:
        try:
            _, output = process.communicate(timeout=_IMPORT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            errors.append(f"its import takes more than {_IMPORT_TIMEOUT_S:.0f} s")
            continue

        if process.returncode == 0:
            errors.append(None)
            continue
        lines = output.decode(errors="replace").strip().splitlines()
        errors.append(lines[-1] if lines else f"its import ends with {process.returncode}")
    return errors


def _redis() -> BackendReport:
    host, port = _REDIS_ADDRESS
    try:
        socket.create_connection(_REDIS_ADDRESS, _CONNECT_TIMEOUT_S).close()
    except OSError:
        return BackendReport(
            "redis", True, f"usable, with a server (cache.l3.url); none listens at {host}:{port}"
        )
    return BackendReport("redis", True, f"usable; a server listens at {host}:{port}")


def _hf3fs(mounts: Path) -> BackendReport:
    fields = [line.split() for line in mounts.read_text().splitlines()]
    found = [field[1] for field in fields if len(field) > 2 and field[2] == _FUSE_TYPE]
    if not found:
        return BackendReport("hf3fs", False, f"nothing of type {_FUSE_TYPE} is mounted")
    return BackendReport("hf3fs", True, f"usable; 3FS is mounted at {', '.join(found)}")
