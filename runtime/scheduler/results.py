"""What an acknowledged step or transfer means: new tokens, published pages, released leases, ended
requests.
"""

import itertools

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import TransferId
from raydix.runtime.messages.arrays import empty, int32_array
from raydix.runtime.messages.client import FinishReason
from raydix.runtime.messages.host import KEY_BYTES, CommitPages, split_keys
from raydix.runtime.messages.plan import StepResult, TransfersDone
from raydix.runtime.scheduler.backups import count_use, offer_new_pages
from raydix.runtime.scheduler.decodes import TakenTokens
from raydix.runtime.scheduler.events import SendTokens
from raydix.runtime.scheduler.lane import Lane, StepInFlight
from raydix.runtime.scheduler.promotion import finish_part
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState, RowOutcome
from raydix.runtime.scheduler.transfers import Backup, Load


def on_step_result(replica: Replica, lane: Lane, result: StepResult, now_s: float) -> None:
    """One rank has done a plan. The plan counts once every rank of the lane has."""
    flight = lane.in_flight.get(result.step)
    if flight is None or result.rank not in flight.waiting_ranks:
        raise AccountingError(
            f"rank {result.rank} acknowledged step {result.step}; in flight are "
            f"{sorted(lane.in_flight)}"
        )
    flight.waiting_ranks.discard(result.rank)
    if result.rank == lane.ranks[0]:
        flight.result = result
    while lane.in_flight:
        oldest = next(iter(lane.in_flight.values()))
        if oldest.waiting_ranks:
            break
        del lane.in_flight[oldest.step]
        lane.pool.settle(oldest.step)
        lane.is_warm = True
        _take_results(replica, lane, oldest, now_s)
        for following in itertools.islice(lane.in_flight.values(), 1):
            following.started_s = now_s


def _take_results(replica: Replica, lane: Lane, flight: StepInFlight, now_s: float) -> None:
    result = flight.result
    assert result is not None
    replica.seconds["compute_s"] += result.compute_s
    if flight.num_tokens > flight.num_rows:
        # A decode step's time says little about the time per prompt token.
        predicted_s = replica.prefill_rate.predict_s(flight.num_tokens, now_s)
        _count_prediction(replica, "prefill", predicted_s, result.compute_s)
        replica.prefill_rate.observe(flight.num_tokens, result.compute_s, now_s)

    num_decodes = 0 if flight.decodes is None else len(flight.decodes.slots)
    num_sampling = num_decodes + sum(row.output_position is not None for row in flight.rows)
    if len(result.token_ids) != num_sampling:
        raise AccountingError(
            f"step {flight.step} brought {len(result.token_ids)} tokens; {num_sampling} rows sample"
        )
    joined_slots, joined_tokens = _take_rows(replica, lane, flight, result, num_decodes, now_s)

    slots, token_ids = empty(), empty()
    if flight.decodes is not None:
        current = lane.batch.is_current(flight.decodes)
        slots, token_ids = flight.decodes.slots[current], result.token_ids[:num_decodes][current]
    if joined_slots:
        slots = np.concatenate((slots, int32_array(joined_slots)))
        token_ids = np.concatenate((token_ids, int32_array(joined_tokens)))
    if len(slots):
        _take_decoded(replica, lane, lane.batch.take(slots, token_ids), now_s)


def _take_rows(
    replica: Replica,
    lane: Lane,
    flight: StepInFlight,
    result: StepResult,
    num_decodes: int,
    now_s: float,
) -> tuple[list[int], list[int]]:
    """Take the outcomes of the rows that were not of the batch.

    Returns slots and tokens of those whose requests have joined it since: their tokens are to be
    taken there.
    """
    slots: list[int] = []
    token_ids: list[int] = []
    logprobs = iter(result.logprobs[num_decodes:])
    start = num_decodes
    for row in flight.rows:
        # A view of at most one token: an array of its own would cost ten times as much.
        stop = start if row.output_position is None else start + 1
        tokens, start = result.token_ids[start:stop], stop
        row_logprobs = None if row.output_position is None else next(logprobs, None)
        request = row.request
        if request.run != row.run:
            continue
        if request.batch is not None and request.slot is not None:
            slots.append(request.slot)
            token_ids.append(int(tokens[0]))
            continue
        outcome = RowOutcome(row.num_computed, tokens, row_logprobs)
        if request.load is not None:
            # Until its load is confirmed, nothing that was computed on top of it counts.
            request.deferred.append(outcome)
        else:
            apply_outcome(replica, lane, request, outcome, now_s)
    return slots, token_ids


def _take_decoded(replica: Replica, lane: Lane, taken: TakenTokens, now_s: float) -> None:
    """Publish the pages that are full, pass the tokens on, end the requests that are complete."""
    batch = lane.batch
    replica.counters["generation_tokens"] += len(taken.slots)
    if taken.fills_page.any() and replica.settings.prefix_caching:
        for slot in taken.slots[taken.fills_page].tolist():
            request = batch.request(slot)
            offer_new_pages(replica, lane, lane.publish(request, now_s))
            count_use(replica, lane, request)

    ended = taken.has_ended
    has_ends = bool(ended.any())
    slots, token_ids = (
        (taken.slots[~ended], taken.token_ids[~ended])
        if has_ends
        else (taken.slots, taken.token_ids)
    )
    for client_id, is_theirs in batch.by_client(slots):
        tokens = SendTokens(
            client_id=client_id,
            askings=batch.askings(slots[is_theirs]),
            token_ids=token_ids[is_theirs],
        )
        replica.effects.append(tokens)

    if not has_ends:
        return
    for slot, token in zip(taken.slots[ended].tolist(), taken.token_ids[ended], strict=True):
        request = batch.request(slot)
        reason = _finish_reason(request, int(token))
        assert reason is not None, "the batch and the request agree about the end"
        _add_latency(replica, request, reason, now_s)
        replica.send_tokens(request, int32_array((token,)), (), reason)
        replica.finish(request, reason)


def _count_prediction(replica: Replica, what: str, predicted_s: float, measured_s: float) -> None:
    """Load or recompute is decided by these predictions: show how far they are from what was
    measured.
    """
    replica.counters[f"predicted_{what}s"] += 1
    replica.seconds[f"{what}_predicted_s"] += predicted_s
    replica.seconds[f"{what}_measured_s"] += measured_s
    replica.seconds[f"{what}_error_s"] += abs(predicted_s - measured_s)


def apply_outcome(
    replica: Replica,
    lane: Lane,
    request: RequestState,
    outcome: RowOutcome,
    now_s: float,
) -> None:
    """Take the outcome of a row that is not of the batch: publish full pages, pass the token on,
    perhaps end it.
    """
    assert request.batch is None, "what decodes is taken by the batch"
    request.row_computed(outcome.num_computed)
    size = replica.settings.page_size
    if replica.settings.prefix_caching and request.num_computed // size > request.num_held_pages:
        offer_new_pages(replica, lane, lane.publish(request, now_s))
        count_use(replica, lane, request)
    if not len(outcome.token_ids):
        return
    token_id = int(outcome.token_ids[0])
    if not request.num_output:
        count_use(replica, lane, request)
    request.append_known(outcome.token_ids)
    if request.num_losses:
        request.num_losses = 0
        lane.waiting.leader_stopped(request.request_id)
    replica.counters["generation_tokens"] += 1
    reason = _finish_reason(request, token_id)
    _add_latency(replica, request, reason, now_s)
    logprobs = () if outcome.logprobs is None else (outcome.logprobs,)
    replica.send_tokens(request, outcome.token_ids, logprobs, reason)
    if reason is not None:
        replica.finish(request, reason)
    else:
        lane.start_decoding(request)


def _add_latency(
    replica: Replica, request: RequestState, reason: FinishReason | None, now_s: float
) -> None:
    if request.first_token_s is None:
        request.first_token_s = now_s
        replica.counters["first_tokens"] += 1
        replica.seconds["first_token_s"] += now_s - request.arrival_s
    if reason is not None:
        replica.counters["later_tokens"] += request.num_output - 1
        replica.seconds["later_tokens_s"] += now_s - request.first_token_s
        replica.counters["complete_requests"] += 1
        replica.seconds["complete_requests_s"] += now_s - request.arrival_s


def _finish_reason(request: RequestState, token_id: int) -> FinishReason | None:
    submit = request.submit
    if token_id in submit.stop_token_ids and request.num_output >= submit.sampling.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if request.num_output >= request.max_tokens else None


def on_transfers_done(replica: Replica, lane: Lane, done: TransfersDone, now_s: float) -> None:
    """One rank has done loads or backups. Each counts once every rank of the lane has."""
    if done.num_bytes:
        _count_prediction(
            replica, "load", replica.load_rate.predict_s(done.num_bytes, now_s), done.seconds
        )
    replica.load_rate.observe(done.num_bytes, done.seconds, now_s)
    replica.seconds["copy_s"] += done.seconds
    stale = set(done.stale_transfer_ids.tolist())
    for transfer_id in done.transfer_ids.tolist():
        transfer = lane.transfers.get(TransferId(transfer_id))
        if transfer is None or done.rank not in transfer.waiting_ranks:
            raise AccountingError(
                f"rank {done.rank} acknowledged transfer {transfer_id}, which is not in flight"
            )
        transfer.waiting_ranks.discard(done.rank)
        transfer.is_stale |= transfer_id in stale
        if transfer.waiting_ranks:
            continue
        del lane.transfers[transfer.transfer_id]
        lane.pool.unhold(transfer.page_ids)
        match transfer:
            case Load():
                _finish_load(replica, lane, transfer, now_s)
            case Backup():
                _finish_backup(replica, lane, transfer)


def _finish_load(replica: Replica, lane: Lane, load: Load, now_s: float) -> None:
    replica.release_lease(load.lease_id, load.host_connection)
    promotion = lane.promotions.get(load.request_id)
    if promotion is not None and promotion.load is load:
        finish_part(replica, lane, promotion, load, now_s)
        return
    request = replica.requests.get(load.request_id)
    if request is None or request.load is not load:
        return
    if load.is_stale:
        replica.counters["stale_loads"] += 1
        request.forget_sources()
        replica.requeue(request)
        return
    run = request.run
    request.load = None
    replica.lookups.end_claim(request)
    replica.counters["loaded_pages"] += len(load.page_ids)
    lane.publish(request, now_s)
    deferred, request.deferred = request.deferred, []
    for outcome in deferred:
        if request.run != run:
            return
        if request.batch is not None and request.slot is not None:
            # It joined with the first of them.
            slots = int32_array((request.slot,))
            _take_decoded(replica, lane, lane.batch.take(slots, outcome.token_ids), now_s)
        else:
            apply_outcome(replica, lane, request, outcome, now_s)


def _finish_backup(replica: Replica, lane: Lane, backup: Backup) -> None:
    lane.backing_up.difference_update(split_keys(backup.keys))
    if backup.host_connection != replica.host.connection:
        return
    replica.counters["backed_up_pages"] += len(backup.keys) // KEY_BYTES
    replica.tell_host(
        CommitPages(
            keys=backup.keys, host_page_ids=backup.host_page_ids, generations=backup.generations
        )
    )
