"""What clients say to the Scheduler, and who takes it."""

from typing import assert_never

from raydix.runtime.messages import client, routing
from raydix.runtime.scheduler.events import ClientGone, ClientMessage
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.hints import Hints
from raydix.runtime.scheduler.life.submission import Submission
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.routing_news import RoutingNews
from raydix.runtime.scheduler.sleep import Sleep


class ClientMessages:
    """Gives each message to those whom it concerns, as it comes."""

    def __init__(
        self,
        *,
        submission: Submission,
        hints: Hints,
        endings: Endings,
        life: Transitions,
        routing_news: RoutingNews,
        sleep: Sleep,
    ) -> None:
        self._submission, self._hints = submission, hints
        self._endings, self._life = endings, life
        self._arrivals = life.arrivals
        self._routing_news, self._sleep = routing_news, sleep

    def hear(self, event: ClientMessage | ClientGone, now_s: float) -> None:
        """Take what a client says, or that it is gone."""
        match event:
            case ClientMessage():
                self._take(event, now_s)
            case ClientGone():
                self._endings.orphan(event.client_id)
                self._arrivals.drop_all(event.client_id)
                self._hints.drop_all(event.client_id)
                self._routing_news.forget(event.client_id)
            case _:
                assert_never(event)

    def _take(self, event: ClientMessage, now_s: float) -> None:
        client_id, message = event.client_id, event.message
        match message:
            case client.SubmitRequest():
                self._routing_news.note_request(client_id, now_s)
                # What was kept for it is free by now, and what has come is in L1.
                self._arrivals.end(client_id, message.expected_as)
                self._submission.submit(client_id, message, now_s)
            case client.ExpectRequest():
                # Whoever sleeps has no L1 to keep anything in.
                if self._sleep.is_awake:
                    self._arrivals.expect(client_id, message, now_s)
            case client.PrefetchPrompt() | client.UnpinPrompt():
                self._hints.take(client_id, message)
            case client.RetainSession():
                self._life.hint(message)
            case routing.FollowEngine():
                self._routing_news.ask(client_id, now_s)
            case client.AbortRequest() | client.StopRequest():
                self._arrivals.end(client_id, message.asking)
                self._hints.abort(client_id, message)
                self._endings.stop(client_id, message)
            case _:
                assert_never(message)
