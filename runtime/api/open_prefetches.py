"""Prefetches whose callers wait for them to be done."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from raydix.errors import RaydixError
from raydix.ids import AskingId
from raydix.runtime.api.request_stream import error_of
from raydix.runtime.messages.client import PrefetchPrompt, RequestDelta

Answer = asyncio.Future[RequestDelta]
Taken = asyncio.Future[None]
"""Completed once an engine has taken a prefetch in."""


@dataclass(frozen=True, slots=True)
class _OpenPrefetch:
    message: PrefetchPrompt
    answer: Answer
    taken: Taken | None


class OpenPrefetches:
    """Owns: who waits for which prefetch, and as which asking it was asked last."""

    def __init__(self) -> None:
        self._open: dict[AskingId, _OpenPrefetch] = {}

    @property
    def askings(self) -> list[AskingId]:
        """The askings for which somebody waits."""
        return [asking for asking, each in self._open.items() if not each.answer.done()]

    @contextlib.contextmanager
    def waiting(self, message: PrefetchPrompt, taken: Taken | None) -> Iterator[Answer]:
        """Meanwhile its first news completes `taken`, and its last the answer, unless it failed."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._open[message.asking] = _OpenPrefetch(message, answer, taken)
        try:
            yield answer
        finally:
            [last] = [asking for asking, each in self._open.items() if each.answer is answer]
            del self._open[last]

    def ask_again(self, asking: AskingId, again: AskingId) -> PrefetchPrompt:
        """The same as another asking, whose news its caller waits for from now on."""
        former = self._open.pop(asking)
        message = replace(former.message, asking=again)
        self._open[again] = replace(former, message=message)
        return message

    def note_taken(self, asking: AskingId) -> None:
        """Take the first news of an asking, which may be no prefetch."""
        prefetch = self._open.get(asking)
        if prefetch is not None and prefetch.taken is not None and not prefetch.taken.done():
            prefetch.taken.set_result(None)

    def end(self, delta: RequestDelta) -> None:
        """Take the last news of an asking, which may be no prefetch."""
        prefetch = self._open.get(delta.asking)
        if prefetch is None or prefetch.answer.done():
            return
        if delta.failure is not None:
            prefetch.answer.set_exception(error_of(delta.failure))
        else:
            prefetch.answer.set_result(delta)

    def fail(self, askings: Collection[AskingId], error: Callable[[], RaydixError]) -> None:
        """Nothing more comes of these, which may be no prefetches."""
        for asking, each in self._open.items():
            if asking in askings and not each.answer.done():
                each.answer.set_exception(error())
