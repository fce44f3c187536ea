"""How threads wait for orders, so that one that comes wakes one of them."""

import os
import select
import threading

_ONCE = select.EPOLLIN | select.EPOLLONESHOT


class Arrivals:
    """Owns: threads that wait until there is something to read at one descriptor. Thread-safe.

    What comes ends the wait of one thread, on Linux that which began to wait last, whose caches are
    the warmest; it says where to `watch` for what comes next. No thread is woken only to
    wait where another has waited: beside a library that uses all cores with threads of its own that
    costs more than the batch.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._now = os.eventfd(1)
        """A descriptor at which there is always something to read."""
        self._end = os.eventfd(0)
        self._epoll.register(self._end, select.EPOLLIN)
        self._closing = threading.Lock()

    def wait(self) -> None:
        """Wait until there is something to read where `watch` was told, or until the end."""
        self._epoll.poll(-1, 1)

    def watch(self, descriptor: int | None) -> None:
        """Let one thread's `wait` end once there is something to read there; None: now.

        A descriptor that is closed or is none counts as None: to read there tells of its end.
        """
        try:
            self._arm(self._now if descriptor is None else descriptor)
        except (OSError, ValueError, OverflowError):
            self._arm(self._now)

    def _arm(self, descriptor: int) -> None:
        try:
            self._epoll.modify(descriptor, _ONCE)
        except FileNotFoundError:
            self._epoll.register(descriptor, _ONCE)

    def end(self) -> None:
        """No `wait` takes time from now on. May be called twice."""
        with self._closing:
            if not self._epoll.closed:
                os.eventfd_write(self._end, 1)

    def close(self) -> None:
        """Give the descriptors back, once nobody waits any more. May be called twice."""
        with self._closing:
            if not self._epoll.closed:
                self._epoll.close()
                os.close(self._now)
                os.close(self._end)
