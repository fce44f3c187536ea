"""Which storage backends this machine can use, and why not the others."""

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from raydix.errors import ConfigError
from raydix.runtime.config.storage_libraries import LIBRARIES
from raydix.runtime.config.storage_plugins import (
    FACTORY_GROUP,
    ClientLibrary,
    find_plugin,
    installed_plugins,
)

_IMPORT_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 0.5
_REDIS_ADDRESS = ("127.0.0.1", 6379)


@dataclass(frozen=True, slots=True)
class BackendReport:
    """Whether a backend can be used here, and what it needs or lacks."""

    name: str
    is_usable: bool
    detail: str


def examine_backends() -> list[BackendReport]:
    """Try the library of each backend that needs one, in a process of its own."""
    libraries, broken = _libraries_of_plugins()
    libraries = {**LIBRARIES, **libraries}
    installed = [
        name
        for name, library in libraries.items()
        if importlib.util.find_spec(library.package) is not None
    ]
    factories = sorted(entry_points(group=FACTORY_GROUP), key=lambda point: point.name)
    tried = _tried(
        [*(libraries[name].statement for name in installed), *map(_import_of, factories)]
    )
    tried_of = dict(zip(installed, tried, strict=False))

    reports = [_redis()]
    for name, library in libraries.items():
        found = tried_of.get(name)
        if found is None:
            reports.append(BackendReport(name, False, f"not installed; {library.remedy}"))
        elif found.error is not None:
            reports.append(BackendReport(name, False, f"{found.error}; {library.remedy}"))
        else:
            told = f"; {found.told}" if found.told else ""
            reports.append(BackendReport(name, True, f"usable, with {library.needs}{told}"))
    reports += broken

    # The errors that are left are those of the factories, which were tried last.
    for point, each in zip(factories, tried[len(installed) :], strict=True):
        detail = f"usable; {point.value}" if each.error is None else each.error
        reports.append(BackendReport(f"plugin {point.name}", each.error is None, detail))
    return reports


def _libraries_of_plugins() -> tuple[dict[str, ClientLibrary], list[BackendReport]]:
    """The library of each installed plugin, and those plugins that cannot be loaded."""
    found: dict[str, ClientLibrary] = {}
    broken = []
    for name in installed_plugins():
        try:
            plugin = find_plugin(name)
        except ConfigError as error:
            broken.append(BackendReport(name, False, str(error)))
            continue
        assert plugin is not None, "it was there a moment ago"
        found[name] = plugin.library
    return found, broken


def _import_of(point: EntryPoint) -> str:
    return f"import {point.module}"


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of a statement."""

    error: str | None
    """The last line of its error output; None if it succeeds."""
    told: str = ""
    """The last line that it prints."""


def _tried(statements: Sequence[str]) -> list[_Tried]:
    """What comes of each statement."""
    # In other processes, all at once: a native library may hang, or abort the process.
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", statement], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for statement in statements
    ]

    tried: list[_Tried] = []
    for process in processes:
        try:
            output, errors = process.communicate(timeout=_IMPORT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            tried.append(_Tried(f"its import takes more than {_IMPORT_TIMEOUT_S:.0f} s"))
            continue

        if process.returncode == 0:
            tried.append(_Tried(None, _last_line(output)))
        else:
            ended = f"its import ends with {process.returncode}"
            tried.append(_Tried(_last_line(errors) or ended))
    return tried


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def _redis() -> BackendReport:
    host, port = _REDIS_ADDRESS
    try:
        socket.create_connection(_REDIS_ADDRESS, _CONNECT_TIMEOUT_S).close()
    except OSError:
        return BackendReport(
            "redis", True, f"usable, with a server (cache.l3.url); none listens at {host}:{port}"
        )
    return BackendReport("redis", True, f"usable; a server listens at {host}:{port}")
