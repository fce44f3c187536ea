"""Which storage backends this machine can use, and why not the others."""

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from raydix.errors import ConfigError
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


_LIBRARIES = {
    "s3": ClientLibrary(
        package="obstore",
        statement="import obstore",
        remedy="pip install raydix[s3]",
        needs="a bucket (cache.l3.bucket)",
    ),
    "mooncake": ClientLibrary(
        package="mooncake",
        statement="import mooncake.store",
        remedy="pip install raydix[mooncake], and libibverbs1 from the system's packages",
        needs="a master (cache.l3.master)",
    ),
}


def examine_backends() -> list[BackendReport]:
    """Try the library of each backend that needs one, in a process of its own."""
    libraries, broken = _libraries_of_plugins()
    libraries = {**_LIBRARIES, **libraries}
    installed = [
        name
        for name, library in libraries.items()
        if importlib.util.find_spec(library.package) is not None
    ]
    factories = sorted(entry_points(group=FACTORY_GROUP), key=lambda point: point.name)
    errors = _import_errors(
        [*(libraries[name].statement for name in installed), *map(_import_of, factories)]
    )
    error_of = dict(zip(installed, errors, strict=False))

    reports = [_redis()]
    for name, library in libraries.items():
        if name not in error_of:
            detail = f"not installed; {library.remedy}"
        elif error_of[name] is not None:
            detail = f"{error_of[name]}; {library.remedy}"
        else:
            reports.append(BackendReport(name, True, f"usable, with {library.needs}"))
            continue
        reports.append(BackendReport(name, False, detail))
    reports += broken

    # The errors that are left are those of the factories, which were tried last.
    for point, error in zip(factories, errors[len(installed) :], strict=True):
        detail = f"usable; {point.value}" if error is None else error
        reports.append(BackendReport(f"plugin {point.name}", error is None, detail))
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
