"""How requests end: well, badly, or as nobody's."""

from raydix.ids import ClientId, RequestId
from raydix.runtime.messages.arrays import empty
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    RequestFailure,
    StopRequest,
)
from raydix.runtime.scheduler.counters import Counters
from raydix.runtime.scheduler.life.client_news import ClientNews
from raydix.runtime.scheduler.life.hand_overs import HandOvers
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.pieces import Pieces
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState

_END_WEIGHT = 8
"""The weight of ending one request that decodes: some 0.1 ms, as its last pages are published."""


class Endings:
    """Ends requests, counts why, and tells their clients."""

    def __init__(
        self,
        *,
        requests: Requests,
        hand_overs: HandOvers,
        life: Transitions,
        news: ClientNews,
        pieces: Pieces,
        counters: Counters,
    ) -> None:
        self._requests = requests
        self._hand_overs = hand_overs
        self._life = life
        self._news = news
        self._pieces = pieces
        self._counters = counters

    def finish(self, request: RequestState, reason: FinishReason) -> None:
        """End a request well: its pages stay cached. The caller sends the client the last news."""
        self._counters.count_end(reason)
        self._life.end(request)

    def hand_over(self, lane: Lane, request: RequestState, now_s: float) -> None:
        """End a request that goes on at another engine, which its client is told in a while."""
        is_orphan = request.request_id in self._requests.orphans
        request.leave_hint()
        self.finish(request, FinishReason.HANDED_OVER)
        lane.backups.hasten()
        # Of what is nobody's nobody is told, and its name may be used again.
        if not is_orphan:
            self._hand_overs.begin(lane, request, now_s)

    def fail(self, request: RequestState, kind: FailureKind, message: str) -> None:
        """End a request badly and tell its client, unless that is gone."""
        self.fail_as(request, RequestFailure(kind=kind, message=message))

    def fail_as(self, request: RequestState, failure: RequestFailure) -> None:
        """Do the same with a failure that says more."""
        if request.request_id in self._requests.orphans:
            self._drop(request)
            return
        self._counters.count_failure(failure.kind)
        self._news.send_failure(request, failure)
        self._life.end(request)

    def stop(self, client_id: ClientId, message: AbortRequest | StopRequest) -> None:
        """End a request as its client asks, unless that means an earlier one of this name."""
        self._hand_overs.stop(client_id, message)
        request = self._requests.living.get(message.request_id)
        if request is None or (request.client_id, request.submit.asking) != (
            client_id,
            message.asking,
        ):
            return
        is_stop = isinstance(message, StopRequest)
        reason = FinishReason.STOP if is_stop else FinishReason.ABORT
        self._news.send_tokens(request, empty(), (), reason)
        self.finish(request, reason)

    def expire(self, request: RequestState) -> None:
        """End a request whose deadline has passed."""
        text = (
            f"deadline_s of {request.submit.deadline_s:g} passed after "
            f"{request.num_output} output tokens."
        )
        self.fail(request, FailureKind.DEADLINE_EXCEEDED, text)

    def end_all(self) -> None:
        """End all requests, as the engine stops now."""
        text = "the engine was shut down before the request had ended."
        for request in list(self._requests.living.values()):
            self.fail(request, FailureKind.SHUTTING_DOWN, text)
        self._hand_overs.end_all()

    def orphan(self, client_id: ClientId) -> None:
        """Let the requests of a client that is gone end piece by piece."""
        self._hand_overs.drop_all(client_id)
        running, waiting = self._requests.orphan(client_id)
        # Those that hold something first. Of the others the newest: what one of them leaves room
        # for is not looked up for the next in vain.
        self._pieces.add(self.drop_orphan, running, weight=_END_WEIGHT)
        self._pieces.add(self.drop_orphan, reversed(waiting))

    def drop_orphan(self, name: RequestId) -> None:
        """End a request if it is nobody's: its name may be used again."""
        if name in self._requests.orphans:
            self._drop(self._requests.living[name])

    def _drop(self, request: RequestState) -> None:
        self._counters.count_end(FinishReason.ABORT)
        self._life.end(request)
