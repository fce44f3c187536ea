"""Calling a start off while it is under way, and ending one whose precondition does not hold."""

import threading
from concurrent.futures import Future, wait
from typing import Any

import ray

from raydix.errors import EngineDead

_POLL_S = 0.1


class StartControl:
    """Owns: whether a start is called off, from whatever thread.

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
        if self._is_called_off.is_set():
            raise EngineDead("the start of the engine was called off")
        if self._precondition is not None and self._precondition.done():
            self._precondition.result()

    def wait_precondition(self) -> None:
        """Wait for the precondition, if there is one, and raise what it raises."""
        self.check()
        while self._precondition is not None and not self._precondition.done():
            wait([self._precondition], _POLL_S)
            self.check()

    def get(self, reference: Any) -> Any:
        """`ray.get`, until the start is called off."""
        while True:
            self.check()
            done, _ = ray.wait([reference], timeout=_POLL_S)
            if done:
                return ray.get(reference)
