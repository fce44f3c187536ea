"""The requests of a client whose callers listen, and what comes for each of them."""

from collections.abc import Callable, Iterable, Sequence

from raydix.errors import RaydixError
from raydix.ids import AskingId
from raydix.runtime.api.open_requests import Callers, OpenRequest
from raydix.runtime.messages.client import RequestDelta, SubmitRequest


class LiveRequests:
    """Owns: the requests whose callers listen, each by what was asked last for it."""

    def __init__(self) -> None:
        self._by_asking: dict[AskingId, OpenRequest] = {}
        self._callers = Callers()

    @property
    def unended(self) -> list[OpenRequest]:
        """The requests of whose output more is to come."""
        return [each for each in self._by_asking.values() if not each.stream.has_ended]

    def get(self, asking: AskingId) -> OpenRequest | None:
        """The request whose latest asking this is."""
        return self._by_asking.get(asking)

    def add(self, request: OpenRequest) -> None:
        """A caller listens to one more."""
        self._by_asking[request.asking] = request

    def drop(self, request: OpenRequest) -> bool:
        """Nobody listens to it any more; False if it was known."""
        return self._by_asking.pop(request.asking, None) is not None

    def ask_again(self, request: OpenRequest, asking: AskingId, now_s: float) -> SubmitRequest:
        """What asks for the rest of an output; what still comes of the former asking is stale."""
        del self._by_asking[request.asking]
        message = request.ask_again(asking, now_s)
        self.add(request)
        return message

    def push(self, request: OpenRequest, delta: RequestDelta, now_s: float) -> bool:
        """Give a request its news; whether a stop string in it ended the output."""
        is_stopped = request.stream.push(delta, now_s)
        self._callers.note_news(request)
        return is_stopped

    def push_tokens(
        self, askings: Sequence[AskingId], token_ids: Sequence[int], now_s: float
    ) -> list[OpenRequest]:
        """`push` a token of each of these askings, of which nothing more is told.

        Returns the requests whose output a stop string has ended.
        """
        stopped: list[OpenRequest] = []
        # Each token of each request comes by here.
        find, note_news = self._by_asking.get, self._callers.note_news
        for asking, token_id in zip(askings, token_ids, strict=True):
            request = find(asking)
            if request is None:
                continue
            stream = request.stream
            if stream.push_token(token_id, now_s):
                stopped.append(request)
                note_news(request)
            elif stream.tells_parts:
                note_news(request)
        return stopped

    def fail(self, requests: Iterable[OpenRequest], error: Callable[[], RaydixError]) -> None:
        """Nothing more comes of these; their callers are told at once."""
        for each in requests:
            each.stream.fail(error())
            if each.note_news():
                each.tell()

    def clear(self) -> None:
        """Forget all of them, untold."""
        self._by_asking.clear()
