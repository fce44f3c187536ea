"""Waiting for SIGINT or SIGTERM."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


STOPPED_STATUS = 130
"""As of a shell's command that Ctrl-C ends."""


class StoppedWhileStarting(Exception):
    """A signal has ended what was to start; nothing of it is left."""


class StopsTooSlowly(Exception):
    """What was to be stopped goes on."""


async def unless_stopped(
    work: Coroutine[Any, Any, T], patience_s: float, on_stop: Callable[[], None]
) -> T | None:
    """The result of `work`; None after SIGINT or SIGTERM, which cancel it.

    `on_stop` is called before that. Raises StopsTooSlowly if `work` has not ended `patience_s`
    later. On the main thread's loop.
    """
    with _signals() as stopped:
        signalled = asyncio.create_task(stopped.wait())
        doing = asyncio.create_task(work)
        try:
            await asyncio.wait({signalled, doing}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()

            on_stop()
            await _end(doing, patience_s)
            return None
        except asyncio.CancelledError:
            # So asyncio tells of a Ctrl-C that came before this: while modules were imported, say.
            await _end(doing, patience_s)
            raise
        finally:
            signalled.cancel()


async def _end(task: asyncio.Task[Any], patience_s: float) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=patience_s)
    if not task.done():
        raise StopsTooSlowly


async def until_stopped(ended: Coroutine[Any, Any, None] | None = None) -> None:
    """Return at the first SIGINT or SIGTERM. Must run on the main thread's loop.

    `ended`: what may end before, such as an engine; then this returns or raises as that does.
    """
    with _signals() as stopped:
        signalled = asyncio.create_task(stopped.wait())
        ending = signalled if ended is None else asyncio.create_task(ended)
        try:
            await asyncio.wait({signalled, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not signalled.done():
                ending.result()
        finally:
            for task in (signalled, ending):
                task.cancel()
            await asyncio.gather(signalled, ending, return_exceptions=True)


@contextlib.contextmanager
def deferring_ctrl_c() -> Iterator[None]:
    """Let SIGINT take effect after the block. On the main thread.

    For imports: some packages, such as ray, catch KeyboardInterrupt there and go on without it.
    """
    noted: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if noted and callable(former):
        former(signal.SIGINT, None)


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set meanwhile."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in former:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number, handler in former.items():
            loop.remove_signal_handler(number)
            # What asyncio had set, say, to cancel the main task.
            signal.signal(number, handler)
