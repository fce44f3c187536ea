"""Requests whose caller is told of news, and takes it when it likes: the ground of all streams.

Whoever listens is called once for however much has come, so that a step of the engine costs no task
of each stream.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Self

from raydix.errors import RaydixError
from raydix.ids import AskingId, RequestId
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.request_stream import RequestStream
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.routing.events import Route

_LEAST_REST_S = 1e-3
"""What is left of a deadline that has passed: the engine says that it has."""

Taken = RequestOutput | RaydixError
"""The news of a request: an output, or the reason why there will be no finished one."""
OnNews = Callable[[], None]
"""A callback on the client's loop, called when something can be taken; it must not raise."""


class OpenRequest:
    """One request whose caller still listens.

    Owns: what was asked last for it, whether its caller knows that there is news, and has had all
    of it.
    """

    def __init__(
        self,
        submission: SubmitRequest,
        stream: RequestStream,
        on_news: OnNews,
        leave: Callable[["OpenRequest"], None],
        *,
        ends_s: float,
        route: Route | None = None,
    ) -> None:
        """`leave`: what is to be done when the caller listens no more. `ends_s`: its deadline, by
        the monotonic clock; infinite for none.
        """
        self._submission = submission
        self._ends_s = ends_s
        self.stream = stream
        self.route = route
        """Why it was sent where it was sent first; None if nothing was reckoned."""
        self._on_news = on_news
        self._leave = leave
        self._is_noted = False
        self._expiry: asyncio.TimerHandle | None = None
        self.is_over = False
        """Whether the finished output or the failure has been taken."""

    @property
    def asking(self) -> AskingId:
        """The asking whose news are its own."""
        return self._submission.asking

    @property
    def request_id(self) -> RequestId:
        """The caller's name for it."""
        return self._submission.request_id

    @property
    def submission(self) -> SubmitRequest:
        """What was asked last for it."""
        return self._submission

    @property
    def num_tokens(self) -> int:
        """The tokens of its output so far."""
        return self.stream.num_tokens

    def at_deadline(self, expire: Callable[["OpenRequest"], None], now_s: float) -> None:
        """Call `expire` at the deadline, if there is one, unless it is to be called already."""
        if self._expiry is None and self._ends_s < math.inf:
            rest_s = max(self._ends_s - now_s, 0.0)
            self._expiry = asyncio.get_running_loop().call_later(rest_s, self._expire, expire)

    def ask_again(self, asking: AskingId, now_s: float) -> SubmitRequest:
        """What asks for the rest of the output, once nothing more comes of the former asking."""
        known_output, sampling = self.stream.token_ids, self._submission.sampling
        if len(known_output):
            # All logprobs of the prompt come before any output.
            sampling = replace(sampling, num_prompt_logprobs=None)
        else:
            self.stream.begin_anew()
        rest_s = max(self._ends_s - now_s, _LEAST_REST_S)
        self._submission = replace(
            self._submission,
            asking=asking,
            sampling=sampling,
            known_output=known_output,
            deadline_s=None if rest_s == math.inf else rest_s,
        )
        return self._submission

    def note_news(self) -> bool:
        """The stream has taken something in; whether the caller has yet to be told of it."""
        if self._is_noted or not self.stream.is_ready:
            return False
        self._is_noted = True
        return True

    def tell(self) -> None:
        """Call whoever listens."""
        self._on_news()

    def take(self) -> Taken | None:
        """Take all news since the last time, as one; None, once told, if nothing is left."""
        self._is_noted = False
        if self.is_over:
            return None
        output = self.stream.take()
        if output is None:
            self.is_over = self.stream.failure is not None
            return self.stream.failure
        self.is_over = output.finished
        return output

    def close(self) -> None:
        """Listen no more: what still runs is aborted."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._leave(self)

    def _expire(self, expire: Callable[["OpenRequest"], None]) -> None:
        self._expiry = None
        expire(self)

    async def outputs(self, news: asyncio.Event) -> AsyncGenerator[RequestOutput, None]:
        """All outputs up to the finished one; raises the failure. `news` is set on news."""
        try:
            while not self.is_over:
                taken = self.take()
                if taken is None:
                    news.clear()
                    await news.wait()
                elif isinstance(taken, RaydixError):
                    raise taken
                else:
                    yield taken
        finally:
            self.close()


class Callers:
    """Owns: whose callers are to be told of news.

    One wake-up of the loop tells all, behind whatever frames have come already.
    """

    def __init__(self) -> None:
        self._waiting: list[OpenRequest] = []

    def note_news(self, request: OpenRequest) -> None:
        """Note that a request has taken something in."""
        if request.note_news():
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._tell)
            self._waiting.append(request)

    def _tell(self) -> None:
        told, self._waiting = self._waiting, []
        for each in told:
            each.tell()


class RequestGroup(AbstractContextManager["RequestGroup"]):
    """Several requests with one listener.

    Owns: the requests, by their place, and which of them have news. Leaving it closes them all.
    """

    def __init__(self, on_news: OnNews) -> None:
        self._on_news = on_news
        self._requests: list[OpenRequest] = []
        self._with_news: set[int] = set()
        self._num_over = 0

    @property
    def is_over(self) -> bool:
        """The last news of every request has been taken."""
        return self._num_over == len(self._requests)

    @property
    def route(self) -> Route | None:
        """Why the first request was sent where it was; None if nothing was reckoned."""
        return self._requests[0].route if self._requests else None

    def add(self, open_request: Callable[[OnNews], OpenRequest]) -> None:
        """Open one more request; whatever that raises is raised."""
        index = len(self._requests)
        self._requests.append(open_request(lambda: self._note(index)))

    def take(self) -> list[tuple[int, Taken]]:
        """The news of all, each with its request's place, in that order."""
        if not self._with_news:
            return []
        indexes, self._with_news = sorted(self._with_news), set()
        news: list[tuple[int, Taken]] = []
        for index in indexes:
            request = self._requests[index]
            taken = request.take()
            while taken is not None:
                news.append((index, taken))
                self._num_over += request.is_over
                # A failure comes behind the output before it.
                taken = None if request.stream.failure is None else request.take()
        return news

    async def all_news(self, news: asyncio.Event) -> AsyncGenerator[tuple[int, Taken], None]:
        """News as it comes, until all is over. `news` is set on news."""
        while not self.is_over:
            await news.wait()
            news.clear()
            for each in self.take():
                yield each

    def close(self) -> None:
        """Listen no more to any of them."""
        for each in self._requests:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _note(self, index: int) -> None:
        self._with_news.add(index)
        self._on_news()
