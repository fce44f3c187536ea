"""A client that has lost its engine, and with it the cluster, for the tests that look at it."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ray_cluster import own_name
from tests.runtime.actors.serve_process import CLIENT, line_of, running, serving


@dataclass(frozen=True, kw_only=True)
class BereavedClient:
    """What was seen of the end of its engine. It waits for a line on standard input."""

    name: str
    """The name of the engine."""
    process: subprocess.Popen[str]
    killed_s: float
    """When the Supervisor was."""
    heard_s: float
    """When the client heard of that."""
    asked_again: str
    """What it prints of the request that it sent next."""
    serve_status: int
    serve_said: str
    serve_ended_s: float


def supervisor_pid(name: str) -> int:
    """The process that has the engine's record locked."""
    path = f"/tmp/raydix-user-{os.geteuid()}/{name}.engine"
    inode = os.stat(path).st_ino
    (line,) = [
        each for each in Path("/proc/locks").read_text().splitlines() if f":{inode} " in each
    ]
    return int(line.split()[4])


@pytest.fixture(scope="session")
def bereaved(checkpoint: Path) -> Iterator[BereavedClient]:
    """Kill the Supervisor of an engine while a client streams from it."""
    name = own_name("mortal")
    with serving(checkpoint, name) as serve:
        line_of(serve, "is ready")
        with running("-c", CLIENT, name) as client:
            line_of(client, "streams")
            killed_s = time.monotonic()
            os.kill(supervisor_pid(name), signal.SIGKILL)
            _, heard_s, _ = line_of(client, "dead").split(maxsplit=2)
            asked_again = line_of(client, "still")
            _, said = serve.communicate(timeout=60)
            yield BereavedClient(
                name=name,
                process=client,
                killed_s=killed_s,
                heard_s=float(heard_s),
                asked_again=asked_again,
                serve_status=serve.returncode,
                serve_said=said,
                serve_ended_s=time.monotonic(),
            )
