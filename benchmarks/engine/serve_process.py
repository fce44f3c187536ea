"""`raydix serve` in a process of its own, with what its log tells of phases."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path

from raydix.runtime.phases import ASIDE, Phase

_READY = "is ready: "
_STOP_S = 60.0


class Served:
    """Owns: the phases that a `raydix serve` has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.began_s = time.time()
        """When the command was given, by the wall clock."""
        self._process = process
        self._phases: list[Phase] = []
        self._other: list[str] = []
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def wait_ready(self) -> None:
        """Return once the engine serves. Raises RuntimeError, with the log, if it ends instead."""
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({ready, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not self._ready.is_set():
            raise RuntimeError("\n".join(["raydix serve ended:", *self._other]))

    def phases(self, since_s: float) -> tuple[Phase, ...]:
        """The phases that have ended since that time of the wall clock, in seconds from it."""
        return tuple(
            Phase(
                actor=each.actor,
                what=each.what,
                began_s=each.began_s - since_s,
                ended_s=each.ended_s - since_s,
            )
            for each in sorted(self._phases, key=lambda each: each.began_s)
            if each.ended_s > since_s
        )

    @property
    def asides(self) -> tuple[str, ...]:
        """What took seconds, and nobody waited for."""
        return tuple(line for line in self._other if line.endswith(ASIDE))

    @property
    def lines(self) -> tuple[str, ...]:
        """Everything that it told and that is no phase."""
        return tuple(self._other)

    async def stop(self) -> None:
        """End it as Ctrl-C does."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._reading
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        async for line in self._process.stdout:
            self._take(line.decode(errors="replace").rstrip())

    def _take(self, line: str) -> None:
        try:
            told = json.loads(line)
            message, took_s = told["message"], told.get("took_s")
        except (ValueError, KeyError, TypeError):
            self._other.append(line)
            return
        if took_s is None:
            self._other.append(f"{told['actor']}: {message}")
        else:
            ended_s = datetime.fromisoformat(told["time"]).timestamp()
            what = message.rpartition(" in ")[0]
            self._phases.append(
                Phase(actor=told["actor"], what=what, began_s=ended_s - took_s, ended_s=ended_s)
            )
        if _READY in message:
            self._ready.set()


@contextlib.asynccontextmanager
async def serve(
    config: Path, name: str, environment: Mapping[str, str] = os.environ
) -> AsyncIterator[Served]:
    """An engine of this configuration file, which is stopped at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "raydix", "serve", str(config), "--name", name, "--log-json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        limit=1 << 20,
    )
    served = Served(process)
    try:
        yield served
    finally:
        await served.stop()
