"""What an acknowledged step or transfer means: tokens, published pages, ended leases, endings."""

from typing import assert_never

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import NO_TOKEN, TransferId
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.client import FailureKind, FinishReason
from raydix.runtime.messages.plan import StepResult, TransfersDone
from raydix.runtime.scheduler.counters import Count, Duration, Prediction, Timing
from raydix.runtime.scheduler.decodes import NewTokens
from raydix.runtime.scheduler.events import SendTokens
from raydix.runtime.scheduler.in_flight import StepInFlight
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.life.run import RowOutcome
from raydix.runtime.scheduler.publishing import advance, count_use, heal, keep_window, publish
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.transfers import Backup, Load

_NO_TOKENS = int32_array((NO_TOKEN,))
_MAX_REPORTED_S = 86_400.0
"""The longest time that a rank may report, in seconds: one infinite time would spoil all sums."""


def on_step_result(replica: Replica, lane: Lane, result: StepResult, now_s: float) -> None:
    """One rank has done a plan. The plan counts once every rank of the lane has."""
    lane.in_flight.acknowledge_step(result)
    while (flight := lane.take_done_step(now_s)) is not None:
        _apply_results(replica, lane, flight, now_s)


def _apply_results(replica: Replica, lane: Lane, flight: StepInFlight, now_s: float) -> None:
    result = flight.result
    assert result is not None, "every rank has answered"
    if _accept_time(lane, result.compute_s):
        _learn_step(replica, lane, flight, result.compute_s, now_s)
    num_decodes = flight.num_decodes
    num_sampling = num_decodes + sum(row.output_position is not None for row in flight.rows)
    if len(result.token_ids) != num_sampling:
        raise AccountingError(
            f"step {flight.step} brought {len(result.token_ids)} tokens; {num_sampling} rows sample"
        )
    joined_slots, joined_tokens = _apply_rows(replica, lane, flight, result, now_s)

    slots, token_ids = empty(), empty()
    if flight.decodes is not None:
        current = lane.batch.is_current(flight.decodes)
        slots, token_ids = flight.decodes.slots[current], result.token_ids[:num_decodes][current]
    if joined_slots:
        slots = np.concatenate((slots, int32_array(joined_slots)))
        token_ids = np.concatenate((token_ids, int32_array(joined_tokens)))
    _apply_tokens(replica, lane, slots, token_ids, now_s)


def _accept_time(lane: Lane, seconds: float) -> bool:
    """Whether to learn from a time that a rank has reported; an impossible one is counted."""
    # Written so that NaN is impossible, too.
    is_possible = 0.0 <= seconds <= _MAX_REPORTED_S
    if not is_possible:
        lane.counters.count(Count.WRONG_TIMES)
    return is_possible


def _learn_step(
    replica: Replica, lane: Lane, flight: StepInFlight, seconds: float, now_s: float
) -> None:
    lane.counters.add_s(Duration.COMPUTE, seconds)
    if flight.num_rows < flight.num_tokens == flight.most_tokens:
        # Only steps with prompt tokens show the time per prompt token, and only on the lane with
        # the most tokens: the others wait for it.
        predicted_s = replica.prefill_rate.predict_s(flight.num_tokens, now_s)
        replica.counters.count_prediction(Prediction.PREFILL, predicted_s, seconds)
        replica.prefill_rate.observe(flight.num_tokens, seconds, now_s)
    elif flight.num_rows == flight.num_tokens == flight.most_tokens:
        replica.decode_rate.observe(flight.num_rows, seconds, now_s)


def _apply_rows(
    replica: Replica,
    lane: Lane,
    flight: StepInFlight,
    result: StepResult,
    now_s: float,
) -> tuple[list[int], list[int]]:
    """Apply the outcomes of the rows that were planned outside the decode batch.

    Some of their requests have joined the batch since. Returns the slots and tokens of those, for
    the batch.
    """
    slots: list[int] = []
    token_ids: list[int] = []
    logprobs = iter(result.logprobs[flight.num_decodes :])
    of_prompts = dict(zip(result.scored_slots.tolist(), result.prompt_logprobs, strict=True))
    not_finite = set(result.not_finite_slots.tolist())
    start = flight.num_decodes
    for row in flight.rows:
        # A view of at most one token: to make an array would cost ten times as much.
        stop = start if row.output_position is None else start + 1
        tokens, start = result.token_ids[start:stop], stop
        row_logprobs = None if row.output_position is None else next(logprobs, None)
        request = row.request
        if request.run != row.run:
            continue
        if request.slot in not_finite:
            tokens = _NO_TOKENS
        if request.batch is not None:
            slots.append(request.batch.slot_of(request))
            token_ids.append(int(tokens[0]))
            continue
        of_prompt = of_prompts.get(request.slot) if of_prompts else None
        outcome = RowOutcome(row.num_computed, tokens, row_logprobs, of_prompt)
        if request.load is not None:
            # Until its load is confirmed, nothing that was computed on top of it counts.
            request.defer(outcome)
        else:
            apply_outcome(replica, lane, request, outcome, now_s)
    return slots, token_ids


def _apply_tokens(
    replica: Replica, lane: Lane, slots: Int32Array, token_ids: Int32Array, now_s: float
) -> None:
    """Add one token to each of these slots of the decode batch."""
    is_missing = token_ids == NO_TOKEN
    if is_missing.any():
        for slot in slots[is_missing].tolist():
            _fail_without_token(replica, lane.batch.request(slot))
        slots, token_ids = slots[~is_missing], token_ids[~is_missing]

    if len(slots):
        _pass_on(replica, lane, lane.batch.add_tokens(slots, token_ids, now_s), now_s)


def _fail_without_token(replica: Replica, request: RequestState) -> None:
    """End a request whose numbers are not finite. What this step computed of it is not kept."""
    text = (
        f"Request {request.request_id}: what the model computes after {request.num_computed} "
        "tokens of prompt and output is not finite, so that no token can be sampled. Check the "
        "checkpoint; with model.dtype float16 try bfloat16 or float32, whose numbers reach "
        "further."
    )
    replica.fail(request, FailureKind.MODEL_FAILED, text)


def _pass_on(replica: Replica, lane: Lane, new: NewTokens, now_s: float) -> None:
    """Publish pages that are due, pass the tokens on, end the requests that are complete."""
    batch = lane.batch
    replica.counters.count(Count.GENERATION_TOKENS, len(new.slots))
    if new.publishes.any():
        for slot in new.slots[new.publishes].tolist():
            advance(lane, batch.request(slot), now_s)

    ended = new.has_ended
    has_ends = bool(ended.any())
    slots, token_ids = (
        (new.slots[~ended], new.token_ids[~ended]) if has_ends else (new.slots, new.token_ids)
    )
    for client_id, is_theirs in batch.by_client(slots):
        tokens = SendTokens(
            client_id=client_id,
            askings=batch.askings(slots[is_theirs]),
            token_ids=token_ids[is_theirs],
        )
        replica.emit(tokens)

    if not has_ends:
        return
    for slot, token in zip(new.slots[ended].tolist(), new.token_ids[ended], strict=True):
        request = batch.request(slot)
        reason = request.finish_reason(int(token))
        assert reason is not None, "the batch and the request agree about the end"
        _count_latency(replica, request, reason, now_s)
        replica.send_tokens(request, int32_array((token,)), (), reason)
        replica.finish(request, reason)


def apply_outcome(
    replica: Replica,
    lane: Lane,
    request: RequestState,
    outcome: RowOutcome,
    now_s: float,
) -> None:
    """Apply the outcome of a row that is not of the batch: pages to publish, a token, the end."""
    assert request.batch is None, "tokens of what decodes go to the batch"
    if len(outcome.token_ids) and outcome.token_ids[0] == NO_TOKEN:
        # First of all: pages with such numbers would spoil the prompts that find them.
        _fail_without_token(replica, request)
        return

    request.finish_row(outcome.num_computed)
    advance(lane, request, now_s)
    if outcome.prompt_logprobs is not None:
        request.add_prompt_logprobs(outcome.prompt_logprobs)
        replica.send_prompt_logprobs(request, outcome.prompt_logprobs)
    if not len(outcome.token_ids):
        return

    if not request.num_output:
        count_use(lane, request)
    request.add_output(outcome.token_ids)
    lane.waiting.coming.discard(request)
    if request.acquit():
        lane.waiting.leader_stopped(request.request_id)

    reason = request.finish_reason(int(outcome.token_ids[0]))
    replica.counters.count(Count.GENERATION_TOKENS)
    _count_latency(replica, request, reason, now_s)
    logprobs = () if outcome.logprobs is None else (outcome.logprobs,)
    replica.send_tokens(request, outcome.token_ids, logprobs, reason)
    if reason is not None:
        replica.finish(request, reason)
    else:
        lane.start_decoding(request)


def _count_latency(
    replica: Replica, request: RequestState, reason: FinishReason | None, now_s: float
) -> None:
    if request.note_first_token(now_s):
        replica.timings.observe(Timing.FIRST_TOKEN, now_s - request.arrival_s)
    if reason is not None and request.first_token_s is not None:
        replica.timings.observe_completion(
            num_later=request.num_output - 1,
            later_s=now_s - request.first_token_s,
            total_s=now_s - request.arrival_s,
        )


def on_transfers_done(replica: Replica, lane: Lane, done: TransfersDone, now_s: float) -> None:
    """One rank has done loads or backups. Each counts once every rank of the lane has."""
    if _accept_time(lane, done.seconds):
        lane.note_copy(done.rank, done.seconds)
        if done.num_bytes:
            _note_copied(lane, done)

    stale = set(done.stale_transfer_ids.tolist())
    for number in done.transfer_ids.tolist():
        transfer = lane.acknowledge_transfer(
            TransferId(number), done.rank, is_stale=number in stale, now_s=now_s
        )
        match transfer:
            case Load():
                _finish_load(replica, lane, transfer, now_s)
            case Backup():
                _finish_backup(replica, lane, transfer, now_s)
            case None:
                pass
            case _:
                assert_never(transfer)


def _note_copied(lane: Lane, done: TransfersDone) -> None:
    """Give the time of loads that a rank reports together to the first of them."""
    transfers = (lane.in_flight.transfers.get(number) for number in done.transfer_ids.tolist())
    first = next((each for each in transfers if isinstance(each, Load)), None)
    if first is not None:
        first.note_copied(done.num_bytes, done.seconds)


def _learn_load(replica: Replica, load: Load, now_s: float) -> None:
    """Learn how long a load takes from its slowest rank: the quick ones do not refute that."""
    if load.copied is not None:
        num_bytes, seconds = load.copied
        predicted_s = replica.load_rate.predict_s(num_bytes, now_s)
        replica.counters.count_prediction(Prediction.LOAD, predicted_s, seconds)
        replica.load_rate.observe(num_bytes, seconds, now_s)


def _finish_load(replica: Replica, lane: Lane, load: Load, now_s: float) -> None:
    _learn_load(replica, load, now_s)
    replica.release_lease(load.lease_id, load.host_connection)
    replica.trials.note_load(load.lease_id, load.age_s(now_s))
    request = replica.requests.get(load.request_id)
    promotion = lane.promotions.of_load(load)
    is_for_run = request is not None and request.load is load
    if request is None or not (is_for_run or promotion is not None):
        return

    if load.is_stale:
        lane.counters.count(Count.STALE_LOADS)
        if promotion is not None:
            lane.promotions.end(request.request_id)
        else:
            request.forget_sources()
            replica.requeue(request)
        return

    lane.counters.count(Count.LOADED_PAGES, load.num_pages)
    replica.timings.observe(Timing.LOAD, load.age_s(now_s))
    if promotion is not None:
        lane.counters.count(Count.PROMOTED_PAGES, load.num_pages)
        lane.promotions.publish(promotion, request, now_s)
        lane.waiting.wake(request)
    else:
        _run_on_load(replica, lane, request, now_s)


def _run_on_load(replica: Replica, lane: Lane, request: RequestState, now_s: float) -> None:
    """Count the rows that a running request had on top of its load, which is done."""
    run = request.run
    replica.lookups.end_claim(request)
    heal(lane, request)
    deferred = request.finish_load()
    keep_window(lane, request, request.start.num_pages)
    publish(lane, request, now_s)
    for outcome in deferred:
        if request.run != run:
            return
        if request.batch is not None:
            # The first of these outcomes has let it join the batch.
            slots = int32_array((request.batch.slot_of(request),))
            _apply_tokens(replica, lane, slots, outcome.token_ids, now_s)
        else:
            apply_outcome(replica, lane, request, outcome, now_s)


def _finish_backup(replica: Replica, lane: Lane, backup: Backup, now_s: float) -> None:
    lane.backups.finish(backup.keys)
    if backup.host_connection != replica.host.connection:
        return
    lane.counters.count(Count.BACKED_UP_PAGES, backup.num_pages)
    replica.timings.observe(Timing.BACKUP, backup.age_s(now_s))
    for commit in backup.commits():
        replica.tell_host(commit)
