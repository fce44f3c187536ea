"""What can carry tokens to experts on other ranks here, and why not the other backends."""

import json
import subprocess
import sys
from collections.abc import Sequence

from raydix.errors import ConfigError
from raydix.moe.dispatch.library import find_library, library_names
from raydix.moe.dispatch.packages import Packages
from raydix.moe.dispatch.probes import BUILT_IN, Verdict, missing

_PROBE_TIMEOUT_S = 60.0


def examine_dispatch() -> list[Verdict]:
    """Probe each backend. Those of libraries that are installed have a process each."""
    packages = Packages()
    libraries = library_names()
    absent = {backend: _missing(backend, packages) for backend in libraries}
    installed = [backend for backend, verdict in absent.items() if verdict is None]

    # All at once: each imports torch, and a library that does not fit may end its process.
    batches: list[Sequence[str]] = [tuple(BUILT_IN), *([backend] for backend in installed)]
    processes = [_start(batch) for batch in batches]
    found = {
        verdict.backend: verdict
        for batch, process in zip(batches, processes, strict=True)
        for verdict in _finish(batch, process)
    }
    found |= {backend: verdict for backend, verdict in absent.items() if verdict is not None}
    return [found[backend] for backend in (*BUILT_IN, *libraries)]


def _missing(backend: str, packages: Packages) -> Verdict | None:
    try:
        return missing(find_library(backend), packages)
    except ConfigError as error:
        return Verdict(backend, str(error), "")


def _start(backends: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "raydix.moe.dispatch.verdicts", *backends],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _finish(backends: Sequence[str], process: "subprocess.Popen[bytes]") -> list[Verdict]:
    try:
        output, errors = process.communicate(timeout=_PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        late = f"its probe takes more than {_PROBE_TIMEOUT_S:.0f} s"
        return [Verdict(backend, late, "") for backend in backends]

    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        obstacle = lines[-1] if lines else f"its import ends with {process.returncode}"
        return [Verdict(backend, obstacle, "") for backend in backends]
    # Libraries print to the same output while they are loaded.
    lines = output.decode().splitlines()[-len(backends) :]
    return [Verdict(**json.loads(line)) for line in lines]
