"""An actor's process ends, whatever Ray says to that."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import ray
from ray.exceptions import RaySystemError

from raydix.runtime.actors.bootstrap import ray_actor
from raydix.runtime.actors.bootstrap.ray_actor import RayActor


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


@pytest.mark.parametrize(
    "error", [None, RaySystemError("lost the GCS"), RuntimeError("Ray has not been started yet")]
)
async def test_the_kernel_kills_a_process_that_ray_does_not(
    error: Exception | None,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def kill(_handle: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(ray, "kill", kill)
    monkeypatch.setattr(ray_actor, "_RAY_KILL_S", 0.0)
    actor = RayActor(object(), "raydix:gpu0", process.pid)
    with caplog.at_level(logging.WARNING):
        actor.kill()
    async with asyncio.timeout(10):
        await actor.wait_ended()
    told = [f"Ray does not kill raydix:gpu0: {error}; the kernel does"] if error else []
    assert caplog.messages == told
