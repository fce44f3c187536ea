"""What clients are told of their requests."""

from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.client import FinishReason, RequestDelta, RequestFailure
from raydix.runtime.messages.plan import PromptLogprobs, TokenLogprobs
from raydix.runtime.scheduler.counters import Counters, Timing, Timings
from raydix.runtime.scheduler.events import SendClient
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.request.request import RequestState


class ClientNews:
    """Writes the news of single requests, and counts what they tell."""

    def __init__(self, outbox: Outbox, counters: Counters, timings: Timings) -> None:
        self._outbox, self._counters, self._timings = outbox, counters, timings

    def send_tokens(
        self,
        request: RequestState,
        token_ids: Int32Array,
        logprobs: tuple[TokenLogprobs | None, ...],
        finished: FinishReason | None,
    ) -> None:
        """Tell the client what is new; the first time also where its prompt came from."""
        self._send(request, token_ids, logprobs, finished=finished)

    def send_failure(self, request: RequestState, failure: RequestFailure) -> None:
        """Tell the client that its request has failed, and why."""
        self._send(request, empty(), (), failure=failure)

    def send_prompt_logprobs(self, request: RequestState, logprobs: PromptLogprobs) -> None:
        """Tell the client of more of its prompt, before any of its output."""
        delta = RequestDelta(
            asking=request.submit.asking,
            request_id=request.request_id,
            prompt_logprobs=(logprobs,),
        )
        self._outbox.emit(SendClient(client_id=request.client_id, delta=delta))

    def _send(
        self,
        request: RequestState,
        token_ids: Int32Array,
        logprobs: tuple[TokenLogprobs | None, ...],
        *,
        finished: FinishReason | None = None,
        failure: RequestFailure | None = None,
    ) -> None:
        queued_s = None
        sources = request.report_sources(has_ended=finished is not None)
        if sources is not None:
            self._counters.count_sources(sources)
            if request.admitted_s is not None:
                queued_s = request.admitted_s - request.arrival_s
                self._timings.observe(Timing.QUEUE, queued_s)

        delta = RequestDelta(
            asking=request.submit.asking,
            request_id=request.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            cached_tokens_by_source=sources,
            queued_s=queued_s,
            finished=finished,
            failure=failure,
        )
        self._outbox.emit(SendClient(client_id=request.client_id, delta=delta))
