"""An arrival wakes one of the threads that wait."""

import os
import queue
import threading

import pytest

from raydix.runtime.storage.worker.arrivals import Arrivals

NUM_THREADS = 6
NOBODY_S = 0.05
"""Long enough for a thread that is woken by mistake to be seen."""


class Waiting:
    """Threads that wait again and again, each telling when it was woken."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.woken: queue.Queue[int] = queue.Queue()
        self.has_ended = False
        self.threads = [threading.Thread(target=self.wait) for _ in range(NUM_THREADS)]
        for thread in self.threads:
            thread.start()

    def wait(self) -> None:
        while True:
            self.arrivals.wait()
            if self.has_ended:
                return
            self.woken.put(threading.get_ident())

    def expect_one(self) -> int:
        """One thread was woken, and no other."""
        thread = self.woken.get(timeout=30)
        with pytest.raises(queue.Empty):
            self.woken.get(timeout=NOBODY_S)
        return thread

    def close(self) -> None:
        self.has_ended = True
        self.arrivals.end()
        self.arrivals.end()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        self.arrivals.close()
        self.arrivals.close()


def test_what_comes_wakes_one_thread_and_nobody_is_woken_for_nothing() -> None:
    waiting = Waiting()
    come = os.eventfd(0)
    for _ in range(2):
        waiting.arrivals.watch(come)
        with pytest.raises(queue.Empty):
            waiting.woken.get(timeout=NOBODY_S)
        os.eventfd_write(come, 1)
        waiting.expect_one()
        # What is still there to be read wakes nobody unasked, and one who is asked for.
        os.eventfd_write(come, 1)
        with pytest.raises(queue.Empty):
            waiting.woken.get(timeout=NOBODY_S)
        waiting.arrivals.watch(come)
        waiting.expect_one()
        os.eventfd_read(come)
    waiting.close()
    os.close(come)


def test_what_has_come_already_wakes_one_thread_at_once() -> None:
    waiting = Waiting()
    for _ in range(3):
        waiting.arrivals.watch(None)
        waiting.expect_one()
    waiting.close()


@pytest.mark.parametrize("descriptor", [None, -1, 1 << 31, 1 << 70])
def test_closed_descriptor_or_none_wakes_one_thread_at_once(descriptor: int | None) -> None:
    waiting = Waiting()
    if descriptor is None:
        descriptor = os.eventfd(0)
        os.close(descriptor)
    waiting.arrivals.watch(descriptor)
    waiting.expect_one()
    waiting.close()


def test_number_of_a_closed_descriptor_may_be_used_again() -> None:
    waiting = Waiting()
    for _ in range(3):
        come = os.eventfd(0)
        waiting.arrivals.watch(come)
        os.eventfd_write(come, 1)
        waiting.expect_one()
        os.close(come)
    waiting.close()
