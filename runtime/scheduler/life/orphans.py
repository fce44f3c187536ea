"""Requests whose client is gone, until they have ended."""

from collections.abc import Iterable, Set

from raydix.errors import AccountingError
from raydix.ids import ClientId, RequestId
from raydix.runtime.scheduler.request.request import RequestState


class Orphans:
    """Owns: which requests are nobody's any more.

    They end piece by piece. Until then none of them is admitted, counts as waiting, or keeps its
    name from others; what runs may get a few more tokens, which nobody hears of.
    """

    def __init__(self) -> None:
        self._waiting: set[RequestId] = set()
        self._running: set[RequestId] = set()

    def __contains__(self, name: RequestId) -> bool:
        return name in self._waiting or name in self._running

    @property
    def num_waiting(self) -> int:
        """The number of orphans that do not run."""
        return len(self._waiting)

    def add_all(
        self, requests: Iterable[RequestState], client_id: ClientId
    ) -> tuple[list[RequestId], list[RequestId]]:
        """Add a gone client's requests. Returns those of them that run, and the others."""
        running: list[RequestId] = []
        waiting: list[RequestId] = []
        # One look at each: of thousands hardly any is in the processor's cache.
        for request in requests:
            if request.client_id == client_id:
                (waiting if request.slot is None else running).append(request.request_id)
        self._running.update(running)
        self._waiting.update(waiting)
        return running, waiting

    def stopped_running(self, name: RequestId) -> None:
        """Note that a request waits again, which may be an orphan."""
        if name in self._running:
            self._running.discard(name)
            self._waiting.add(name)

    def discard(self, name: RequestId) -> None:
        """Forget a request that has ended."""
        self._running.discard(name)
        self._waiting.discard(name)

    def check(self, *, running: Set[RequestId], waiting: Set[RequestId]) -> None:
        """Raise AccountingError unless orphans are among those that run and wait."""
        if not self._running <= running or not self._waiting <= waiting:
            raise AccountingError(
                f"of {len(self._running)} running and {len(self._waiting)} waiting orphans one "
                f"is not among {len(running)} running and {len(waiting)} waiting requests"
            )
