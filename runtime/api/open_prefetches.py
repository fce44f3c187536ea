"""Prefetches whose callers wait for them to be done."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator

from raydix.errors import RaydixError
from raydix.ids import AskingId
from raydix.runtime.api.request_stream import error_of
from raydix.runtime.messages.client import RequestDelta

Answer = asyncio.Future[RequestDelta]


class OpenPrefetches:
    """Owns: who waits for which prefetch."""

    def __init__(self) -> None:
        self._answers: dict[AskingId, Answer] = {}

    @contextlib.contextmanager
    def waiting(self, asking: AskingId) -> Iterator[Answer]:
        """Meanwhile its last news, if it did not fail, completes the answer."""
        answer = self._answers[asking] = asyncio.get_running_loop().create_future()
        try:
            yield answer
        finally:
            del self._answers[asking]

    def end(self, delta: RequestDelta) -> None:
        """Take the last news of an asking, which may be no prefetch."""
        answer = self._answers.get(delta.asking)
        if answer is None or answer.done():
            return
        if delta.failure is not None:
            answer.set_exception(error_of(delta.failure))
        else:
            answer.set_result(delta)

    def fail(self, askings: Collection[AskingId], error: Callable[[], RaydixError]) -> None:
        """Nothing more comes of these, which may be no prefetches."""
        for asking, answer in self._answers.items():
            if asking in askings and not answer.done():
                answer.set_exception(error())
