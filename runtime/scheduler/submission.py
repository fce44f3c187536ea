"""A new request: is it acceptable, which lane takes it, and what is asked of HostMemory for it."""

from raydix.errors import AccountingError
from raydix.ids import ClientId
from raydix.runtime.cache.radix_node import chain_keys
from raydix.runtime.messages.client import FailureKind, RequestDelta, RequestFailure, SubmitRequest
from raydix.runtime.messages.host import KEY_BYTES, Urgency
from raydix.runtime.scheduler.events import SendClient
from raydix.runtime.scheduler.hints import look_hints_up
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.settings import LoadPolicy

_MAX_SESSIONS = 65_536
_RETRY_AFTER_S = 1.0
_MAX_HASHED_PAGES = 1024
"""Page keys computed per event: a long prompt holds nobody up."""


def submit(replica: Replica, client_id: ClientId, message: SubmitRequest, now_s: float) -> None:
    """Queue a request on the lane that should answer it soonest, or refuse it with a typed failure."""
    failure = _refusal(replica, message)
    if failure is not None:
        replica.counters[f"failed_{failure.kind.name.lower()}"] += 1
        delta = RequestDelta(request_id=message.request_id, failure=failure)
        replica.effects.append(SendClient(client_id=client_id, delta=delta))
        return
    room = replica.settings.max_model_len - len(message.token_ids)
    max_tokens = room if message.max_tokens is None else min(message.max_tokens, room)
    request = RequestState(message, client_id, max_tokens=max_tokens, now_s=now_s)
    replica.requests[request.request_id] = request
    replica.counters["prompt_tokens"] += request.num_prompt
    if request.deadline_s is not None:
        replica.wake_at(request.deadline_s)
    _adopt_keys(replica, request)
    replica.hashing[request.request_id] = request


def _adopt_keys(replica: Replica, request: RequestState) -> None:
    """What L1 holds of the prompt was hashed before: a long chat costs the keys of its new pages alone."""
    if replica.settings.prefix_caching and replica.lanes:
        match = max((lane.match(request) for lane in replica.lanes), key=lambda found: found.num_pages)
        request.adopt_keys(chain_keys(match.node)[: match.num_pages * KEY_BYTES])


def enqueue_hashed(replica: Replica, now_s: float) -> None:
    """Compute page keys of new requests, oldest first, a bounded number per event, and queue those that are done.

    What is left of that number is for hints.
    """
    size = replica.settings.page_size
    num_left = _MAX_HASHED_PAGES
    for request in list(replica.hashing.values()):
        num_full = request.num_prompt // size if replica.settings.prefix_caching else 0
        num_known = request.num_keys
        request.extend_keys(num_full, num_left, size)
        num_left -= request.num_keys - num_known
        if request.num_keys < num_full:
            replica.wake_at(now_s)
            return
        del replica.hashing[request.request_id]
        enqueue(replica, request, now_s)
    if replica.hints:
        look_hints_up(replica, num_left, now_s)


def move_waiting(replica: Replica, lane: Lane, now_s: float) -> None:
    """Queue a lane's waiting requests anew: it has lost its ranks, or another lane has got some."""
    moved = list(lane.waiting.values())
    lane.waiting.clear()
    for request in moved:
        lane.end_promotion(request.request_id)
        replica.cancel_lookup(request)
        enqueue(replica, request, now_s)


def enqueue(replica: Replica, request: RequestState, now_s: float) -> None:
    """Put a request that holds nothing on a lane, and look its chain up in L2 and L3."""
    num_l1_pages, lane = _choose_lane(replica, request, now_s)
    request.lane = lane.index
    lane.waiting[request.request_id] = request
    request.matched_pages = num_l1_pages
    request.num_counted_pages = 0
    session = request.submit.session_id
    if session is not None:
        replica.sessions[session] = lane.index
        replica.sessions.move_to_end(session)
        while len(replica.sessions) > _MAX_SESSIONS:
            replica.sessions.popitem(last=False)
    replica.look_up(request, num_l1_pages, Urgency.REQUEST, now_s)
    if not request.prefetch.is_final:
        num_full = request.num_prompt // replica.settings.page_size
        keys = request.keys(num_full, replica.settings.page_size)
        request.matched_pages += replica.host.count_resident(keys, num_l1_pages, num_full)


def _refusal(replica: Replica, message: SubmitRequest) -> RequestFailure | None:
    settings = replica.settings
    num_prompt = len(message.token_ids)
    if message.request_id in replica.requests or message.request_id in replica.hints:
        text = f"request_id {message.request_id!r} is in use; expected a new one. Leave it out to have one made."
        return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)
    if num_prompt == 0:
        text = "the prompt has no tokens; expected at least one."
        return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)
    if message.max_tokens is not None and message.max_tokens < 1:
        text = f"max_tokens is {message.max_tokens}; expected at least 1, or None for the rest of the context."
        return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)
    if num_prompt >= settings.max_model_len:
        text = (
            f"the prompt has {num_prompt} tokens; expected at most {settings.max_model_len - 1}, which leaves room for "
            "one generated token. Shorten it or raise model.max_model_len."
        )
        return RequestFailure(kind=FailureKind.PROMPT_TOO_LONG, message=text)
    num_waiting = replica.num_waiting
    if num_waiting >= settings.max_waiting_requests:
        text = (
            f"{num_waiting} requests wait; scheduler.max_waiting_requests is {settings.max_waiting_requests}. "
            f"Try again in {_RETRY_AFTER_S:g} s."
        )
        return RequestFailure(kind=FailureKind.OVERLOADED, message=text, retry_after_s=_RETRY_AFTER_S)
    return None


def _choose_lane(replica: Replica, request: RequestState, now_s: float) -> tuple[int, Lane]:
    """The lane with the least predicted time to first token; ties go to the session's lane, the longest prefix."""
    lanes = [lane for lane in replica.lanes if lane.is_attached] or replica.lanes
    if not lanes:
        raise AccountingError("the replica has no lane; expected parallel.dp of them")
    preferred = replica.sessions.get(request.submit.session_id or "")
    tokens_per_s = replica.prefill_rate.rate(now_s)
    size = replica.settings.page_size

    def cost(candidate: tuple[int, Lane]) -> tuple[float, bool, int, int]:
        num_l1_pages, lane = candidate
        own_s = _predict_prefill_s(replica, request, num_l1_pages, now_s)
        queued = sum(other.num_tokens - other.matched_pages * size for other in lane.waiting.values())
        queued += sum(other.num_target - other.num_computed for other in lane.running.values())
        busy_s = queued / tokens_per_s + own_s
        return (round(busy_s, 4), lane.index != preferred, -num_l1_pages, len(lane.running) + len(lane.waiting))

    caches = replica.settings.prefix_caching
    return min(((lane.match(request).num_pages if caches else 0, lane) for lane in lanes), key=cost)


def _predict_prefill_s(replica: Replica, request: RequestState, num_l1_pages: int, now_s: float) -> float:
    """How long it takes to load what L2 holds of the request, and to compute what no tier holds."""
    settings = replica.settings
    size = settings.page_size
    num_l2_pages = 0
    if replica.host.is_usable and replica.host.num_keys and settings.prefix_caching:
        num_full = request.num_tokens // size
        num_l2_pages = replica.host.count_resident(request.keys(num_full, size), num_l1_pages, num_full)
    load_s = replica.load_rate.predict_s(num_l2_pages * settings.layout.payload_bytes(0), now_s)
    recompute_s = replica.prefill_rate.predict_s(num_l2_pages * size, now_s)
    match settings.load:
        case LoadPolicy.ALWAYS:
            reuse_s = load_s
        case LoadPolicy.NEVER:
            reuse_s = recompute_s
        case LoadPolicy.AUTO:
            reuse_s = min(load_s, recompute_s)
    num_missing = request.num_tokens - (num_l1_pages + num_l2_pages) * size
    return reuse_s + replica.prefill_rate.predict_s(num_missing, now_s)
