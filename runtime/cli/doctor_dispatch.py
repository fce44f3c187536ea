"""Which libraries can carry tokens to experts on other ranks here, and why not the others."""

import json
import subprocess
import sys

from raydix.moe.dispatch.packages import Packages
from raydix.moe.dispatch.probes import LIBRARIES, Verdict, missing

_PROBE_TIMEOUT_S = 60.0


def examine_dispatch() -> list[Verdict]:
    """Probe each backend of another library; those that are installed in processes of their own."""
    packages = Packages()
    absent = {backend: missing(backend, packages) for backend in LIBRARIES}
    # All at once: each imports torch, and a library that does not fit may end its process.
    processes = {
        backend: subprocess.Popen(
            [sys.executable, "-m", "raydix.moe.dispatch.machine", backend],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for backend, verdict in absent.items()
        if verdict is None
    }
    return [
        verdict if verdict is not None else _finish(backend, processes[backend])
        for backend, verdict in absent.items()
    ]


def _finish(backend: str, process: "subprocess.Popen[bytes]") -> Verdict:
    try:
        output, errors = process.communicate(timeout=_PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Verdict(backend, f"its probe takes more than {_PROBE_TIMEOUT_S:.0f} s", "")

    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        return Verdict(
            backend, lines[-1] if lines else f"its import ends with {process.returncode}", ""
        )
    # Libraries print to the same output while they are loaded.
    return Verdict(**json.loads(output.decode().splitlines()[-1]))
