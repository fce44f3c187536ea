"""A new request: is it acceptable?"""

from collections.abc import Sequence
from functools import partial

from raydix.ids import ClientId
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.radix_node import chain_keys
from raydix.runtime.messages.client import FailureKind, RequestDelta, RequestFailure, SubmitRequest
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.events import SendClient
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.grammars import Grammars
from raydix.runtime.scheduler.life.refusals import refuse_as_closing, refuse_request
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.waiting_room import refuse_for_room
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.timers import Timers


class Submission:
    """Takes in new requests, or refuses them."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        endings: Endings,
        grammars: Grammars,
        outbox: Outbox,
        timers: Timers,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._lanes = lanes
        self._endings = endings
        self._grammars = grammars
        self._outbox = outbox
        self._timers = timers
        self._counters = counters

    def submit(self, client_id: ClientId, message: SubmitRequest, now_s: float) -> None:
        """Queue a request, or refuse it with a typed failure."""
        failure = self._refusal(message) or self._grammars.refusal(message)
        if failure is not None:
            self._refuse(client_id, message, failure)
            return

        request = self._enter(client_id, message, now_s)
        self._counters.count(Count.PROMPT_TOKENS, request.num_prompt)
        if request.deadline_s is not None:
            self._timers.add(request.deadline_s, request.ticket)
        self._grammars.provide(request)

    def _enter(self, client_id: ClientId, message: SubmitRequest, now_s: float) -> RequestState:
        """Let a request live, with what is known of its prompt, under a name of its own."""
        room = self._settings.max_model_len - len(message.token_ids)
        request = RequestState(
            message,
            client_id,
            serial=self._requests.next_serial(),
            max_tokens=room if message.max_tokens is None else min(message.max_tokens, room),
            page_size=self._settings.page_size,
            now_s=now_s,
        )
        self._adopt_keys(request)
        self._endings.drop_orphan(request.request_id)
        self._requests.add(request)
        return request

    def _refuse(self, client_id: ClientId, message: SubmitRequest, failure: RequestFailure) -> None:
        self._counters.count_failure(failure.kind)
        delta = RequestDelta(asking=message.asking, request_id=message.request_id, failure=failure)
        self._outbox.emit(SendClient(client_id=client_id, delta=delta))

    def _adopt_keys(self, request: RequestState) -> None:
        """Take the keys of what L1 holds of the prompt: of a chat only new pages are hashed."""
        if self._settings.prefix_caching and self._lanes:
            matches = [lane.match(request.chain) for lane in self._lanes]
            longest = max(matches, key=lambda match: match.num_pages)
            request.chain.adopt_keys(chain_keys(longest.node)[: longest.num_pages * KEY_BYTES])

    def _refusal(self, message: SubmitRequest) -> RequestFailure | None:
        settings = self._settings
        if self._requests.is_closing:
            return refuse_as_closing()
        if self._requests.is_in_use(message.request_id):
            text = (
                f"request_id {message.request_id!r} is in use; expected a new one. Leave it out to "
                f"have one made."
            )
            return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)

        refusal = refuse_request(message, settings)
        if refusal is not None:
            return refusal

        # What was taken in before, here or elsewhere, cannot be taken back from its caller: it is
        # counted, but not refused.
        if message.known_output is not None:
            return None
        return refuse_for_room(
            self._requests.num_waiting(sum(len(lane.waiting) for lane in self._lanes)),
            settings.max_waiting_requests,
            None if message.cache_salt is None else partial(self._num_waiting_of, message),
            what="requests",
            bound="scheduler.max_waiting_requests",
            num_going_on=self._requests.num_going_on,
        )

    def _num_waiting_of(self, message: SubmitRequest) -> int:
        """The number of requests that wait and are of this one's tenant."""
        tenant = tenant_of(message.cache_salt)
        running = (request for lane in self._lanes for request in lane.running.values())
        num_running = sum(tenant_of(each.submit.cache_salt) == tenant for each in running)
        return self._requests.num_living_of(tenant) - num_running
