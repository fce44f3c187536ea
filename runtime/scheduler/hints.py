"""Prefetch hints: bring to L2 what L3 has of a prompt before a request asks for it.

Nothing is computed. A hint is a lookup without a request. It goes after the requests everywhere:
its keys are hashed when theirs are, few hints are looked up at a time, and HostMemory reads for
them when no request's pages wait.
"""

from raydix.ids import ClientId
from raydix.runtime.cache.kv_match import match_groups
from raydix.runtime.messages.client import (
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    RequestFailure,
)
from raydix.runtime.messages.host import PageSource, Urgency
from raydix.runtime.scheduler.attribution import attribute, total_by_source
from raydix.runtime.scheduler.chain import Chain
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.events import SendClient
from raydix.runtime.scheduler.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.refusals import refuse_as_closing, refuse_prefetch
from raydix.runtime.scheduler.replica import Replica

_MAX_HINTS = 256
"""The most hints of all clients together; each keeps its prompt in memory until it is answered."""
_MAX_LOOKED_UP = 4
"""The most hints whose lookups are open in HostMemory at a time."""
_RETRY_AFTER_S = 1.0


def submit_hint(replica: Replica, client_id: ClientId, message: PrefetchPrompt) -> None:
    """Queue a hint, or refuse it with a typed failure."""
    failure = _refusal(replica, message)
    if failure is not None:
        delta = RequestDelta(asking=message.asking, request_id=message.request_id, failure=failure)
        replica.emit(SendClient(client_id=client_id, delta=delta))
        return

    replica.add_hint(
        PrefetchHint(
            asking=message.asking,
            request_id=message.request_id,
            client_id=client_id,
            chain=Chain(
                message.token_ids,
                cache_salt=message.cache_salt,
                page_size=replica.settings.page_size,
            ),
        )
    )


def _refusal(replica: Replica, message: PrefetchPrompt) -> RequestFailure | None:
    if replica.is_closing:
        return refuse_as_closing()
    if replica.is_in_use(message.request_id):
        text = f"request_id {message.request_id!r} is in use; expected a new one."
        return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)

    refusal = refuse_prefetch(message, replica.settings)
    if refusal is not None:
        return refusal

    if len(replica.hints) >= _MAX_HINTS:
        text = (
            f"{_MAX_HINTS} prefetches wait, which is the most. Try again in {_RETRY_AFTER_S:g} s."
        )
        return RequestFailure(
            kind=FailureKind.OVERLOADED, message=text, retry_after_s=_RETRY_AFTER_S
        )
    return None


def look_up_hints(replica: Replica, num_pages: int, now_s: float) -> None:
    """Hash at most `num_pages` keys of hints, oldest first, and look up those that are done."""
    num_looked_up = sum(hint.prefetch.is_pending for hint in replica.hints.values())
    for hint in list(replica.hints.values()):
        if num_looked_up >= _MAX_LOOKED_UP:
            return
        if hint.prefetch.is_pending:
            continue

        num_full = hint.chain.num_prompt_pages
        num_pages -= hint.chain.extend_keys(num_full, num_pages)
        if hint.chain.num_keys < num_full:
            replica.wake_at(now_s)
            return

        if not num_full or not replica.host.is_usable:
            hint.prefetch.make_due((0,) * replica.settings.num_groups, num_full)
            end_hint(replica, hint, PageSource.IO_ERROR)
        else:
            matches = [lane.match(hint.chain) for lane in replica.lanes]
            longest = max(matches, key=lambda match: match.num_pages)
            replica.send_lookup(hint, longest, Urgency.HINT)
            num_looked_up += 1


def end_hint(replica: Replica, hint: PrefetchHint, missed: PageSource) -> None:
    """Tell the client where the prompt's pages were; `missed`: why pending ones did not come."""
    hint.prefetch.give_up(missed)
    layout = replica.settings.layout
    found = match_groups(layout.groups, hint.prefetch.by_group, page_size=layout.page_size)

    ranges = attribute(
        hint.chain.num_prompt,
        hint.prefetch,
        replica.settings,
        tiers=bytes([PageSource.L2]) * found.num_pages,
        num_left_pages=0,
    )

    replica.counters.count(Count.PREFETCHES)
    _answer(replica, hint, FinishReason.PREFETCH, total_by_source(ranges))


def abort_hint(replica: Replica, hint: PrefetchHint) -> None:
    """End a hint that its client has aborted."""
    replica.cancel_lookup(hint)
    _answer(replica, hint, FinishReason.ABORT, None)


def drop_hints(replica: Replica, client_id: ClientId) -> None:
    """End all hints of a client that is gone."""
    for hint in [hint for hint in replica.hints.values() if hint.client_id == client_id]:
        replica.cancel_lookup(hint)
        replica.remove_hint(hint)


def _answer(
    replica: Replica,
    hint: PrefetchHint,
    reason: FinishReason,
    tokens_by_source: dict[str, int] | None,
) -> None:
    replica.remove_hint(hint)
    delta = RequestDelta(
        asking=hint.asking,
        request_id=hint.request_id,
        cached_tokens_by_source=tokens_by_source,
        finished=reason,
    )
    replica.emit(SendClient(client_id=hint.client_id, delta=delta))
