"""What an acknowledged step means: tokens, published pages, endings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import NO_TOKEN
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.client import FailureKind, FinishReason, RequestFailure
from raydix.runtime.messages.plan import StepResult, StepsLeftOut, TokenLogprobs
from raydix.runtime.scheduler.counters import Count, Counters, Duration, Prediction, Timing, Timings
from raydix.runtime.scheduler.events import SendTokens
from raydix.runtime.scheduler.life.client_news import ClientNews
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.publishing import advance, count_use
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.ranks.decodes import NewTokens
from raydix.runtime.scheduler.ranks.in_flight import StepInFlight
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.run import RowOutcome

_NOTHING = empty()
_NO_TOKENS = int32_array((NO_TOKEN,))
_MAX_REPORTED_S = 86_400.0
"""The longest time that a rank may report, in seconds: one infinite time would spoil all sums."""


@dataclass(frozen=True, slots=True)
class _Last:
    """What a request's last step has brought."""

    token_ids: Int32Array
    logprobs: tuple[TokenLogprobs | None, ...]
    reason: FinishReason


class StepResults:
    """Takes in the steps that ranks have done."""

    def __init__(
        self,
        *,
        rates: Rates,
        life: Transitions,
        endings: Endings,
        news: ClientNews,
        outbox: Outbox,
        counters: Counters,
        timings: Timings,
    ) -> None:
        self._rates = rates
        self._life = life
        self._endings = endings
        self._news = news
        self._outbox = outbox
        self._counters = counters
        self._timings = timings

    def take(self, lane: Lane, result: StepResult, now_s: float) -> None:
        """One rank has done a plan. The plan counts once every rank of the lane has."""
        lane.in_flight.acknowledge_step(result)
        while (flight := lane.take_done_step(now_s)) is not None:
            self._apply_results(lane, flight, now_s)

    def leave_out(self, lane: Lane, message: StepsLeftOut, now_s: float) -> None:
        """The only rank of a lane does not repeat a plan any more, as another one has come."""
        for flight in lane.in_flight.leave_out(message, now_s):
            assert flight.decodes is not None, "nothing else is repeated"
            lane.batch.take_back(flight.decodes)
            lane.l1.pools.settle(flight.step)

    def _apply_results(self, lane: Lane, flight: StepInFlight, now_s: float) -> None:
        result = flight.result
        assert result is not None, "every rank has answered"
        lane.step_group.note_step(lane.index)
        if accept_time(lane, result.compute_s):
            self._learn_step(lane, flight, result.compute_s, now_s)
        num_decodes = flight.num_decodes
        num_sampling = num_decodes + sum(row.output_position is not None for row in flight.rows)
        if len(result.token_ids) != num_sampling:
            raise AccountingError(
                f"step {flight.step} brought {len(result.token_ids)} tokens; "
                f"{num_sampling} rows sample"
            )
        joined_slots, joined_tokens = self._apply_rows(lane, flight, result, now_s)

        slots, token_ids = _NOTHING, _NOTHING
        if flight.decodes is not None:
            slots, token_ids = flight.decodes.slots, result.token_ids[:num_decodes]
            current = lane.batch.is_current(flight.decodes)
            if not current.all():
                slots, token_ids = slots[current], token_ids[current]
            if len(result.slow_slots):
                is_slow = np.isin(slots, result.slow_slots)
                for slot in slots[is_slow].tolist():
                    self._fail_as_slow(lane.batch.request(slot))
                slots, token_ids = slots[~is_slow], token_ids[~is_slow]
        if joined_slots:
            slots = np.concatenate((slots, int32_array(joined_slots)))
            token_ids = np.concatenate((token_ids, int32_array(joined_tokens)))
        self._apply_tokens(lane, slots, token_ids, now_s)

    def _learn_step(self, lane: Lane, flight: StepInFlight, seconds: float, now_s: float) -> None:
        lane.counters.add_s(Duration.COMPUTE, seconds)
        if flight.num_rows < flight.num_tokens == flight.most_tokens:
            # Only steps with prompt tokens show the time per prompt token, and only on the lane
            # with the most tokens: the others wait for it.
            predicted_s = self._rates.prefill.predict_s(flight.num_tokens, now_s)
            self._counters.count_prediction(Prediction.PREFILL, predicted_s, seconds)
            self._rates.prefill.observe(flight.num_tokens, seconds, now_s)
        elif flight.num_rows == flight.num_tokens == flight.most_tokens:
            self._rates.decode.observe(flight.num_rows, seconds, now_s)

    def _apply_rows(
        self,
        lane: Lane,
        flight: StepInFlight,
        result: StepResult,
        now_s: float,
    ) -> tuple[list[int], list[int]]:
        """Apply the outcomes of the rows that were planned outside the decode batch.

        Some of their requests have joined the batch since. Returns the slots and tokens of those,
        for the batch.
        """
        slots: list[int] = []
        token_ids: list[int] = []
        # Most steps have no other rows than those of the batch.
        if not flight.rows:
            return slots, token_ids
        logprobs = iter(result.logprobs[flight.num_decodes :])
        of_prompts = dict(zip(result.scored_slots.tolist(), result.prompt_logprobs, strict=True))
        not_finite = set(result.not_finite_slots.tolist())
        slow = set(result.slow_slots.tolist())
        start = flight.num_decodes
        for row in flight.rows:
            # A view of at most one token: to make an array would cost ten times as much.
            stop = start if row.output_position is None else start + 1
            tokens, start = result.token_ids[start:stop], stop
            row_logprobs = None if row.output_position is None else next(logprobs, None)
            request = row.request
            if request.run != row.run:
                continue
            if request.slot in slow:
                self._fail_as_slow(request)
                continue
            if request.slot in not_finite:
                tokens = _NO_TOKENS
            if request.is_decoding:
                slots.append(lane.batch.slot_of(request))
                token_ids.append(int(tokens[0]))
                continue
            of_prompt = of_prompts.get(request.slot) if of_prompts else None
            outcome = RowOutcome(row.num_computed, tokens, row_logprobs, of_prompt)
            if request.load is not None:
                # Until its load is confirmed, nothing that was computed on top of it counts.
                request.defer(outcome)
            else:
                self._apply_outcome(lane, request, outcome, now_s)
        return slots, token_ids

    def _apply_tokens(
        self, lane: Lane, slots: Int32Array, token_ids: Int32Array, now_s: float
    ) -> None:
        """Add one token to each of these slots of the decode batch."""
        is_missing = token_ids == NO_TOKEN
        if is_missing.any():
            for slot in slots[is_missing].tolist():
                self._fail_without_token(lane.batch.request(slot))
            slots, token_ids = slots[~is_missing], token_ids[~is_missing]

        if len(slots):
            self._pass_on(lane, lane.batch.add_tokens(slots, token_ids, now_s), now_s)

    def _fail_without_token(self, request: RequestState) -> None:
        """End a request whose numbers are not finite. What this step computed of it is not kept."""
        text = (
            f"Request {request.request_id}: what the model computes after {request.num_computed} "
            "tokens of prompt and output is not finite, so that no token can be sampled. Check the "
            "checkpoint; with model.dtype float16 try bfloat16 or float32, whose numbers reach "
            "further."
        )
        self._endings.fail(request, FailureKind.MODEL_FAILED, text)

    def _fail_as_slow(self, request: RequestState) -> None:
        """End a request for whose grammar all others would have to wait."""
        asked = request.submit.grammar
        text = (
            f"takes too long for each token after {request.num_output} of them: it can be read in "
            "too many ways. Make the grammar less ambiguous."
        )
        name = None if asked is None else asked.parameter
        failure = RequestFailure(kind=FailureKind.BAD_REQUEST, message=text, parameter=name)
        self._endings.fail_as(request, failure)

    def _pass_on(self, lane: Lane, new: NewTokens, now_s: float) -> None:
        """Publish pages that are due, pass the tokens on, end the requests that are complete."""
        batch = lane.batch
        self._counters.count(Count.GENERATION_TOKENS, len(new.slots))
        if new.publishes.any():
            for slot in new.slots[new.publishes].tolist():
                advance(lane, batch.request(slot), now_s)

        ended = new.has_ended
        has_ends = bool(ended.any())
        slots, token_ids = (
            (new.slots[~ended], new.token_ids[~ended]) if has_ends else (new.slots, new.token_ids)
        )
        for client_id, theirs in batch.by_client(slots):
            tokens = SendTokens(
                client_id=client_id,
                askings=batch.askings(slots[theirs]),
                token_ids=token_ids[theirs],
            )
            self._outbox.emit(tokens)

        if not has_ends:
            return
        for slot, token in zip(new.slots[ended].tolist(), new.token_ids[ended], strict=True):
            request = batch.request(slot)
            reason = _finish_reason(request, int(token))
            assert reason is not None, "the batch and the request agree about the end"
            self._count_latency(request, reason, now_s)
            self._end(lane, request, _Last(int32_array((token,)), (), reason), now_s)

    def apply_deferred(
        self, lane: Lane, request: RequestState, outcomes: Sequence[RowOutcome], now_s: float
    ) -> None:
        """Apply what was computed on top of a load, which is done."""
        run = request.run
        for outcome in outcomes:
            if request.run != run:
                return
            if request.is_decoding:
                # The first of these outcomes has let it join the batch.
                slots = int32_array((lane.batch.slot_of(request),))
                self._apply_tokens(lane, slots, outcome.token_ids, now_s)
            else:
                self._apply_outcome(lane, request, outcome, now_s)

    def _apply_outcome(
        self, lane: Lane, request: RequestState, outcome: RowOutcome, now_s: float
    ) -> None:
        """Apply the outcome of a row that is not of the batch: full pages, a token, the end."""
        assert not request.is_decoding, "tokens of what decodes go to the batch"
        if len(outcome.token_ids) and outcome.token_ids[0] == NO_TOKEN:
            # First of all: pages with such numbers would spoil the prompts that find them.
            self._fail_without_token(request)
            return

        request.finish_row(outcome.num_computed)
        advance(lane, request, now_s)
        if outcome.prompt_logprobs is not None:
            request.add_prompt_logprobs(outcome.prompt_logprobs)
            self._news.send_prompt_logprobs(request, outcome.prompt_logprobs)
        if not len(outcome.token_ids):
            return

        if not request.num_output:
            count_use(lane, request)
        request.add_output(outcome.token_ids)
        lane.waiting.note_computed(request)
        if request.acquit():
            lane.waiting.leader_stopped(request.request_id)

        reason = _finish_reason(request, int(outcome.token_ids[0]))
        self._counters.count(Count.GENERATION_TOKENS)
        self._count_latency(request, reason, now_s)
        logprobs = () if outcome.logprobs is None else (outcome.logprobs,)
        if reason is not None:
            self._end(lane, request, _Last(outcome.token_ids, logprobs, reason), now_s)
        else:
            self._news.send_tokens(request, outcome.token_ids, logprobs, None)
            self._life.join(lane, request)

    def _end(self, lane: Lane, request: RequestState, last: _Last, now_s: float) -> None:
        """Pass a request's last tokens on, and end it; who goes on elsewhere is told so later."""
        if last.reason is FinishReason.HANDED_OVER:
            self._news.send_tokens(request, last.token_ids, last.logprobs, None)
            self._endings.hand_over(lane, request, now_s)
        else:
            self._news.send_tokens(request, last.token_ids, last.logprobs, last.reason)
            self._endings.finish(request, last.reason)

    def _count_latency(
        self, request: RequestState, reason: FinishReason | None, now_s: float
    ) -> None:
        if request.note_first_token(now_s):
            self._timings.observe(Timing.FIRST_TOKEN, now_s - request.arrival_s)
        if reason is not None and request.first_token_s is not None:
            self._timings.observe_completion(
                num_later=request.num_output - 1,
                later_s=now_s - request.first_token_s,
                total_s=now_s - request.arrival_s,
            )


def accept_time(lane: Lane, seconds: float) -> bool:
    """Whether to learn from a time that a rank has reported; an impossible one is counted."""
    # Written so that NaN is impossible, too.
    is_possible = 0.0 <= seconds <= _MAX_REPORTED_S
    if not is_possible:
        lane.counters.count(Count.WRONG_TIMES)
    return is_possible


def _finish_reason(request: RequestState, token_id: int) -> FinishReason | None:
    """Why the request is complete, `token_id` being its last known token; None if it is not."""
    num_output = request.num_output
    is_stop = token_id in request.submit.stop_token_ids
    if is_stop and num_output >= request.submit.sampling.min_tokens:
        return FinishReason.STOP
    if num_output < request.max_tokens:
        return None
    return FinishReason.HANDED_OVER if request.is_handed_over else FinishReason.LENGTH
