"""A new request: is it acceptable, which lane takes it, and what is asked of HostMemory for it."""

import itertools

from raydix.errors import AccountingError
from raydix.ids import ClientId
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.radix_node import chain_keys
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.messages.client import FailureKind, RequestDelta, RequestFailure, SubmitRequest
from raydix.runtime.scheduler import admission
from raydix.runtime.scheduler.cached_prefix import CachedPrefix
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.events import SendClient
from raydix.runtime.scheduler.hints import look_up_hints
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.refusals import refuse_as_closing, refuse_request
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState

_RETRY_AFTER_S = 1.0
_MAX_HASHED_PAGES = 1024
"""The most page keys that are hashed per event, so that a long prompt holds nobody up."""
_MAX_PLACED = 32
"""The most requests that get a lane per event: a lane that loses its ranks may have thousands."""
_MAX_SOUGHT_PAGES = 16_384
"""The most pages that one event looks up on all lanes to place requests; then no further one gets a
lane. That takes 2 ms, and a prompt of 100,000 tokens has thousands of pages.
"""


def submit(replica: Replica, client_id: ClientId, message: SubmitRequest, now_s: float) -> None:
    """Queue a request, or refuse it with a typed failure."""
    failure = _refusal(replica, message)
    if failure is not None:
        replica.counters.count_failure(failure.kind)
        delta = RequestDelta(asking=message.asking, request_id=message.request_id, failure=failure)
        replica.emit(SendClient(client_id=client_id, delta=delta))
        return

    room = replica.settings.max_model_len - len(message.token_ids)
    max_tokens = room if message.max_tokens is None else min(message.max_tokens, room)
    request = RequestState(
        message,
        client_id,
        serial=replica.next_serial(),
        max_tokens=max_tokens,
        page_size=replica.settings.page_size,
        now_s=now_s,
    )

    replica.counters.count(Count.PROMPT_TOKENS, request.num_prompt)
    if request.deadline_s is not None:
        replica.wake_at(request.deadline_s, request)
    _adopt_keys(replica, request)
    replica.add_request(request)


def _adopt_keys(replica: Replica, request: RequestState) -> None:
    """Take the keys of what L1 holds of the prompt: of a long chat only new pages are hashed."""
    if replica.settings.prefix_caching and replica.lanes:
        matches = [lane.match(request.chain) for lane in replica.lanes]
        longest = max(matches, key=lambda match: match.num_pages)
        request.chain.adopt_keys(chain_keys(longest.node)[: longest.num_pages * KEY_BYTES])


def place_requests(replica: Replica, now_s: float) -> None:
    """Hash page keys of requests without a lane, oldest first, and queue those that are done.

    The number per event is bounded; what is left of it is for hints.
    """
    num_left, num_sought = _MAX_HASHED_PAGES, 0
    for request in list(itertools.islice(replica.unplaced.values(), _MAX_PLACED)):
        if num_sought >= _MAX_SOUGHT_PAGES:
            break
        chain = request.chain
        num_full = chain.num_prompt_pages if replica.settings.prefix_caching else 0
        num_left -= chain.extend_keys(num_full, num_left)
        if chain.num_keys < num_full:
            break
        if replica.settings.keeps_windows and request.num_shared_pages is None:
            keys = chain.keys(num_full)
            request.note_shared(replica.prefixes.num_shared(keys))
            replica.prefixes.meet(keys)
        replica.take_unplaced(request)
        enqueue(replica, request, now_s)
        num_sought += num_full * len(replica.lanes)

    if replica.unplaced:
        replica.wake_at(now_s)
    elif replica.hints:
        look_up_hints(replica, num_left, now_s)


def enqueue(replica: Replica, request: RequestState, now_s: float) -> None:
    """Put a request that holds nothing on a lane, and have its chain looked up in L2 and L3."""
    found, lane = _choose_lane(replica, request, now_s)
    request.move_to(lane.index)
    if request.submit.session_id is not None:
        replica.sessions.remember(request.submit.session_id, lane.index)
    admission.enqueue(replica, lane, request, found)
    replica.want_lookup(request, found)


def _refusal(replica: Replica, message: SubmitRequest) -> RequestFailure | None:
    settings = replica.settings
    if replica.is_closing:
        return refuse_as_closing()
    if replica.is_in_use(message.request_id):
        text = (
            f"request_id {message.request_id!r} is in use; expected a new one. Leave it out to "
            f"have one made."
        )
        return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)

    refusal = refuse_request(message, settings)
    if refusal is not None:
        return refusal

    num_waiting = replica.num_waiting
    if num_waiting >= settings.max_waiting_requests:
        text = (
            f"{num_waiting} requests wait; scheduler.max_waiting_requests is "
            f"{settings.max_waiting_requests}. "
            f"Try again in {_RETRY_AFTER_S:g} s."
        )
        return RequestFailure(
            kind=FailureKind.OVERLOADED, message=text, retry_after_s=_RETRY_AFTER_S
        )
    return None


def _choose_lane(
    replica: Replica, request: RequestState, now_s: float
) -> tuple[CachedPrefix, Lane]:
    """The lane with the least predicted time to first token; for a sample that of its prompt.

    A prefix that a lane is about to compute is not computed there again. Who shares it goes there,
    unless that takes longer than to compute it elsewhere, and this takes time from others, too.

    Ties go to the session's lane, then to the longest prefix, then to the fewest requests.
    """
    first = replica.first_of_samples(request)
    if first is not None and replica.lanes[first.lane].is_attached:
        lane = replica.lanes[first.lane]
        return replica.find_prefix(request, lane), lane

    lanes = [lane for lane in replica.lanes if lane.is_attached] or replica.lanes
    if not lanes:
        raise AccountingError("the replica has no lane; expected parallel.dp of them")
    if request.is_suspect:
        # Those of a step group share a lane, where they run one at a time.
        lanes = [lane for lane in lanes if lane.is_first_of_group]
    if len(lanes) == 1:
        return replica.find_prefix(request, lanes[0]), lanes[0]
    preferred = replica.sessions.lane_of(request.submit.session_id)
    tokens_per_s = replica.prefill_rate.rate(now_s)
    is_sharing = replica.settings.prefix_caching
    coming = [lane.waiting.coming.num_pages(request) if is_sharing else 0 for lane in lanes]

    def cost(candidate: tuple[CachedPrefix, Lane, int]) -> tuple[float, bool, int, int]:
        found, lane, num_coming = candidate
        num_pages = max(found.num_pages, num_coming)
        own_s = _predict_prefill_s(replica, request, found, num_pages, now_s)
        busy_s = (lane.waiting.num_tokens + lane.num_tokens_to_compute) / tokens_per_s + own_s
        # What another lane computes anyway takes this one's time from others.
        num_repeated = max(0, max(coming) - num_pages) * replica.settings.page_size
        return (
            round(busy_s + num_repeated / tokens_per_s, 4),
            lane.index != preferred,
            -max(found.num_l1_pages, num_coming),
            len(lane.running) + len(lane.waiting),
        )

    candidates = [
        (replica.find_prefix(request, lane), lane, num_coming)
        for lane, num_coming in zip(lanes, coming, strict=True)
    ]
    found, lane, _ = min(candidates, key=cost)
    return found, lane


def _predict_prefill_s(
    replica: Replica, request: RequestState, found: CachedPrefix, num_pages: int, now_s: float
) -> float:
    """How long it takes to load what L2 holds of the request, and to compute what no tier holds.

    `num_pages`: what it will find once others are done.
    """
    settings = replica.settings
    size = settings.page_size

    load_s = replica.load_rate.predict_s(replica.bytes_of(map(len, found.loads)), now_s)
    recompute_s = replica.prefill_rate.predict_s(found.num_l2_pages * size, now_s)
    match settings.load:
        case LoadPolicy.ALWAYS:
            reuse_s = load_s
        case LoadPolicy.NEVER:
            reuse_s = recompute_s
        case LoadPolicy.AUTO:
            reuse_s = min(load_s, recompute_s)

    num_missing = request.num_tokens - num_pages * size
    return reuse_s + replica.prefill_rate.predict_s(num_missing, now_s)
