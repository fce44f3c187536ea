"""Waiting for SIGINT or SIGTERM."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


STOPPED_STATUS = 130
"""The exit status of a command that Ctrl-C ends, as shells have it."""
_STOPS = (signal.SIGINT, signal.SIGTERM)


class StoppedWhileStarting(Exception):
    """A signal has ended what was to start; nothing of it is left."""


class StopsTooSlowly(Exception):
    """What was to be stopped goes on."""


async def unless_stopped(
    work: Coroutine[Any, Any, T], patience_s: float, on_stop: Callable[[], None]
) -> T | None:
    """The result of `work`; None after SIGINT or SIGTERM, which cancel it.

    `on_stop` is called before that. Raises StopsTooSlowly if `work` has not ended `patience_s`
    later. On the main thread's loop. A signal that came just before cancels this: the same happens
    then, but that it raises.
    """
    with _signals() as stopped:
        signalled = asyncio.create_task(stopped.wait())
        doing = asyncio.create_task(work)
        try:
            await asyncio.wait({signalled, doing}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            await _stop(doing, patience_s, on_stop)
            return None
        except asyncio.CancelledError:
            if not doing.done():
                await _stop(doing, patience_s, on_stop)
            raise
        finally:
            signalled.cancel()


async def _stop(doing: asyncio.Task[Any], patience_s: float, on_stop: Callable[[], None]) -> None:
    on_stop()
    doing.cancel()
    await asyncio.wait({doing}, timeout=patience_s)
    if not doing.done():
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
def deferring_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM take effect after the block. On the main thread.

    For imports: some packages, such as ray, catch KeyboardInterrupt there and go on without it.
    """
    noted: list[int] = []
    former = {
        number: signal.signal(number, lambda number, _: noted.append(number)) for number in _STOPS
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    for each in noted:
        signal.raise_signal(each)


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set meanwhile."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    former = {number: signal.getsignal(number) for number in _STOPS}
    for number in former:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number, handler in former.items():
            loop.remove_signal_handler(number)
            # What asyncio had set, say, to cancel the main task.
            signal.signal(number, handler)
