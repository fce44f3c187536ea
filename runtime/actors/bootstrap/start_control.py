"""Calling a start off while it is under way, and ending one whose precondition does not hold."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import ray

from raydix.errors import EngineDead

_POLL_S = 0.1
_HOLD_S = 20.0
"""Ray's own start, which nothing interrupts, takes two seconds, on a busy host ten."""

T = TypeVar("T")


@contextlib.contextmanager
def holding_exit() -> Iterator[None]:
    """Let the end of the process wait for the block, a while at most, also on a daemon thread.

    At its end a process gives up what its Ray calls use; one that is under way on another thread
    then crashes it.
    """
    is_over = threading.Event()

    def hold() -> None:
        while threading.main_thread().is_alive():
            if is_over.wait(_POLL_S):
                return
        is_over.wait(_HOLD_S)

    threading.Thread(target=hold, name="raydix-holds-exit", daemon=False).start()
    try:
        yield
    finally:
        is_over.set()


class StartControl:
    """Owns: whether a start is called off, from whatever thread or by the end of the process.

    The thread that starts an engine asks between its steps and while it waits: it alone undoes what
    it has made.
    """

    def __init__(self, precondition: "Future[Any] | None" = None) -> None:
        """`precondition`: must end well before weights are read; what it raises ends the start."""
        self._precondition = precondition
        self._is_called_off = threading.Event()

    def call_off(self) -> None:
        """Let the start end soon, with EngineDead. May be called twice, and after it has ended."""
        self._is_called_off.set()

    def check(self) -> None:
        """Raise EngineDead if the start is called off, and what the precondition has raised."""
        if self._is_called_off.is_set() or not threading.main_thread().is_alive():
            raise EngineDead("the start of the engine was called off")
        if self._precondition is not None and self._precondition.done():
            self._precondition.result()

    def wait_precondition(self) -> None:
        """Wait for the precondition, if there is one, and raise what it raises."""
        self.check()
        if self._precondition is not None:
            self.result(self._precondition)

    def result(self, future: "Future[T]") -> T:
        """`future.result()`, until the start is called off."""
        while not future.done():
            self.check()
            wait([future], _POLL_S)
        return future.result()

    def get(self, reference: Any) -> Any:
        """`ray.get`, until the start is called off."""
        while True:
            self.check()
            done, _ = ray.wait([reference], timeout=_POLL_S)
            if done:
                return ray.get(reference)
