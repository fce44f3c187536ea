"""Processes of one host as actors see them: end with another one, await its end, kill it."""

import asyncio
import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PR_SET_PDEATHSIG = 1


class ProcessHandle:
    """One process, told apart from later ones with its pid. Raises ProcessLookupError if gone.

    Holds a descriptor until the process has been seen to end, or until `close`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd: int | None = os.pidfd_open(pid)

    def kill(self) -> None:
        """End the process, stopped or not; nothing happens if it has ended."""
        if self._fd is None:
            return
        try:
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def wait(self) -> None:
        """Return once the process has ended: its memory maps and copies are no more."""
        if self._fd is None:
            return

        # Each waiter has a descriptor of its own: the first one to see the end closes the handle's.
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        fd = os.dup(self._fd)
        loop.add_reader(fd, _settle, ended)
        try:
            await ended
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        self.close()

    def close(self) -> None:
        """Forget the process; to `kill` and `wait` it counts as ended. May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from later ones with its pid, in a form that can be written down."""

    pid: int
    started: int
    """When it started, in the kernel's ticks since the host did; 0: it had ended by then."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this pid now."""
        return cls(pid, _started(pid))

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended; one that nobody has waited for yet has."""
        return self.started != 0 and _started(self.pid) == self.started

    async def wait_ended(self) -> None:
        """Return once it has ended."""
        # While the pid is open no other process has it: what is looked at is what is waited for.
        try:
            handle = ProcessHandle(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.is_alive:
                await handle.wait()
        finally:
            handle.close()


def _started(pid: int) -> int:
    """The start time of the process with this pid; 0 if there is none that lives."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name, in parentheses, may hold anything.
    fields = status.rpartition(b")")[2].split()
    # The first thread may have ended before others, which still have the memory.
    has_ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return 0 if has_ended else int(fields[19])


async def wait_for_exit(pid: int) -> None:
    """Return once process `pid` has ended; at once if there is none."""
    try:
        process = ProcessHandle(pid)
    except ProcessLookupError:
        return
    try:
        await process.wait()
    finally:
        process.close()


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def end_with(pid: int, unless: Callable[[], bool] = lambda: False) -> None:
    """Kill this process when process `pid`, on the same host, ends, unless that holds by then."""
    fd = os.pidfd_open(pid)

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
        if not unless():
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name=f"ends-with-{pid}", daemon=True).start()


def exit_process() -> None:
    """End this process at once, without clean-up.

    Its peers see their links close, and the Supervisor sees it end.
    """
    os._exit(1)
