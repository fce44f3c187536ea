"""Work of many tenants on a few threads, a step of one tenant after a step of another."""

import asyncio
import contextlib
import functools
from collections import Counter, deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from raydix.errors import Cancelled

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work in steps, each of which is done on whatever thread is free. It returns a result."""


class _Work(Generic[T]):
    """One caller's work, and who waits for it."""

    def __init__(self, tenant: str | None, steps: Steps[T]) -> None:
        self.tenant = tenant
        self.steps = steps
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()


class FairTurns:
    """Owns: the threads, and whose turn is next. Belongs to one event loop.

    Tenants take turns, and so do the works of one tenant, so that short work waits for one step of
    each long one at most. No tenant has all threads, however much work it brings: a step that takes
    long delays its own tenant alone.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        """Start `num_threads`, at least two, of which one tenant uses all but one."""
        assert num_threads >= 2, "one is for other tenants"
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._waiting: dict[str | None, deque[_Work[Any]]] = {}
        """The works that wait, by tenant; the tenant whose turn is next comes first."""
        self._running = Counter[str | None]()
        """The number of steps under way, by tenant."""
        self._works = set[_Work[Any]]()
        """The works whose caller waits."""
        self._is_closed = False

    async def run(self, tenant: str | None, steps: Steps[T]) -> T:
        """Take the steps by turns; return their result. Cancelling ends them after the present one.

        Raises Cancelled if the threads are closed, now or later.
        """
        if self._is_closed:
            raise _closed()
        work = _Work(tenant, steps)
        self._works.add(work)
        self._waiting.setdefault(tenant, deque()).append(work)
        self._start()
        try:
            return await work.result
        finally:
            self._works.discard(work)
            # An error knows this frame, and the work knows the error: together with the text, as
            # long as the frame knows the work.
            del work

    def close(self) -> None:
        """Start no more steps; those under way end by themselves."""
        self._is_closed = True
        self._waiting.clear()
        for work in self._works:
            if not work.result.done():
                work.result.set_exception(_closed())
        self._threads.shutdown(wait=False)

    def _start(self) -> None:
        """Start as many steps as there are threads for."""
        loop = asyncio.get_running_loop()
        while (work := self._next()) is not None:
            if work.result.done():
                work.steps.close()
                continue
            self._running[work.tenant] += 1
            step = self._threads.submit(_take_step, work.steps)
            step.add_done_callback(functools.partial(_tell, loop, self._note_step, work))

    def _next(self) -> _Work[Any] | None:
        """The work whose turn it is, if there is a thread for it."""
        if self._is_closed or self._running.total() == self._num_threads:
            return None
        for tenant, works in self._waiting.items():
            if self._running[tenant] < self._num_threads - 1:
                # Behind the others from now on.
                del self._waiting[tenant]
                work = works.popleft()
                if works:
                    self._waiting[tenant] = works
                return work
        return None

    def _note_step(self, work: _Work[Any], step: "Future[_Done | None]") -> None:
        self._running[work.tenant] -= 1
        error = step.exception()
        done = None if error is not None else step.result()
        if work.result.done():
            # Cancelled, or closed.
            work.steps.close()
        elif error is not None:
            work.result.set_exception(error)
        elif done is not None:
            work.result.set_result(done.result)
        else:
            self._waiting.setdefault(work.tenant, deque()).append(work)
        self._start()


def _closed() -> Cancelled:
    return Cancelled("The client was closed while its text was being read.")


def in_one_step(work: Callable[[], T]) -> Steps[T]:
    """Work that is not to be cut."""
    result = work()
    yield from ()
    return result


def result_of(steps: Steps[T]) -> T:
    """Take all steps at once."""
    while (done := _take_step(steps)) is None:
        pass
    result: T = done.result
    return result


@dataclass(frozen=True, slots=True)
class _Done:
    """The last step was taken."""

    result: Any


def _take_step(steps: Steps[Any]) -> _Done | None:
    try:
        next(steps)
    except StopIteration as end:
        return _Done(end.value)
    return None


def _tell(
    loop: asyncio.AbstractEventLoop,
    note: Callable[[_Work[Any], "Future[_Done | None]"], None],
    work: _Work[Any],
    step: "Future[_Done | None]",
) -> None:
    # The loop may have ended meanwhile, and with it whoever waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(note, work, step)
