"""Blocking work beside an event loop, which the end of the process does not wait for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def on_thread(
    name: str, work: Callable[P, T], *arguments: P.args, **options: P.kwargs
) -> "Future[T]":
    """Call `work` on a daemon thread of its own; threads of a pool would hold up the exit."""
    result: Future[T] = Future()

    def run() -> None:
        # From here on a waiter that is cancelled does not cancel the work.
        result.set_running_or_notify_cancel()
        try:
            result.set_result(work(*arguments, **options))
        except BaseException as error:  # noqa: BLE001  it belongs to the one who waits
            result.set_exception(error)

    threading.Thread(target=run, name=f"raydix-{name}", daemon=True).start()
    return result
