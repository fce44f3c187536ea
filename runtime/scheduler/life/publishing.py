"""What a running request gives to L1's tree: computed pages, loaded windows, and what it leaves.

Requests that run beside each other compute the same pages. Who publishes first puts them into the
tree; for whoever comes second they are duplicates, and go:

                     block table of B     tree
    B computes page 9  [ 3 | 4 | 9 ]      3 - 4         A has not published yet
    A publishes 7      [ 3 | 4 | 9 ]      3 - 4 - 7     same tokens, so same page key as 9
    B publishes        [ 3 | 4 | 7 ]      3 - 4 - 7     9 is released, into quarantine: steps that
                                                        were sent before still read it
"""

from collections.abc import Sequence

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.cache.checkpoints import checkpoints_between, window_before
from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.page_pools import PageIds, pages_between
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.scheduler.pages.backups import pages_with_keys
from raydix.runtime.scheduler.pages.inspected import NewPage
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings


def advance(lane: Lane, request: RequestState, now_s: float) -> None:
    """Publish full pages that a request has computed; give up those that no row reads any more."""
    settings = lane.settings
    num_full = request.num_computed // settings.page_size
    if settings.prefix_caching:
        if num_full > request.num_held_pages:
            publish_computed(lane, request, now_s)
    elif settings.has_windows:
        lane.l1.release(request.table.leave(first_needed(settings.reaches, num_full)))


def publish_rest(lane: Lane, request: RequestState) -> None:
    """Publish, before a run gives its pages back, what has been decoded and not published yet.

    The request itself knows all of its answer then, whatever of it can be published. What a load
    may still bring is not there: such a request does not decode.
    """
    if request.is_decoding:
        lane.batch.flush_tokens(request)
        advance(lane, request, lane.batch.tokens_s)


def publish_computed(lane: Lane, request: RequestState, now_s: float) -> None:
    """Publish what the request has computed, of which L2 may want a copy."""
    if request.is_decoding:
        lane.batch.flush_tokens(request)
    lane.backups.offer_new(publish(lane, request, now_s))
    count_use(lane, request)


def count_use(lane: Lane, request: RequestState) -> None:
    """Count each page of a request's published prefix as used by it, once."""
    if lane.settings.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE:
        pages = request.count_pages()
        is_returning = lane.backups.count_use(
            request.chain.keys(pages.stop, pages.start),
            request.table.pages(pages.start, pages.stop),
            is_returning=request.is_returning,
        )
        if is_returning:
            request.note_return()


def note_end(lane: Lane, request: RequestState, num_pages: int) -> None:
    """Note that a request ends, whose last cached page is where its conversation may go on."""
    if num_pages:
        [key] = split_keys(request.chain.keys(num_pages, num_pages - 1))
        lane.backups.note_end(key)


def publish(lane: Lane, request: RequestState, now_s: float) -> list[NewPage]:
    """Put the request's full computed pages into the tree; returns those new to it.

    Where the tree already held a page, the request's duplicate is released and its table points
    at the tree's. Of WINDOW groups the request holds no page behind the window any more.
    """
    lock = request.lock
    assert lock is not None, "only a running request publishes"
    new: list[NewPage] = []
    num_full = min(request.num_computed, request.num_tokens) // lane.settings.page_size
    # Prompt and output become nodes of their own, so that outputs can be evicted before prompts.
    for segment, stop in (
        (Segment.PROMPT, min(request.chain.num_prompt_pages, num_full)),
        (Segment.OUTPUT, num_full),
    ):
        if lock.num_pages < stop:
            keys, pages = _publish_segment(lane, request, segment, stop, now_s)
            lane.waiting.pages_came(keys)
            new += pages
    lane.lead(request, request.num_held_pages)
    return new


def _publish_segment(
    lane: Lane, request: RequestState, segment: Segment, stop: int, now_s: float
) -> tuple[list[PageKey], list[NewPage]]:
    """Enter the pages up to `stop`, all of one segment; returns their keys and what is new."""
    lock = request.lock
    assert lock is not None, "only a running request publishes"
    start = lock.num_pages
    own = request.table.pages(start, stop)
    insertion = lane.l1.insert(
        request.chain,
        lock,
        own,
        segment=segment,
        priority=request.submit.priority,
        now_s=now_s,
    )
    keys = split_keys(request.chain.keys(stop, start))
    lane.use_pages_of_tree(request, start, own, insertion.page_ids)
    if lane.settings.has_windows:
        _leave_windows(lane, request, start, stop)
    first_new = insertion.num_existing_pages
    return keys, list(pages_with_keys(keys[first_new:], pages_between(own, first_new)))


def _leave_windows(lane: Lane, request: RequestState, start: int, stop: int) -> None:
    """Offer to L2 the windows before the checkpoints just passed; give up what lies behind."""
    distance = lane.settings.checkpoint_distance
    assert distance is not None, "there are windows"
    # Where it was taken up is one more: its window has come with the load.
    places = *request.start.checkpoints, request.start.num_pages
    for end in checkpoints_between(start, stop, distance, places):
        keep_window(lane, request, end)
    request.table.leave(first_needed(lane.settings.reaches, stop))
    if lane.settings.has_states and request.is_decoding:
        _leave_states(lane, request, start - 1, stop - 1)


def _leave_states(lane: Lane, request: RequestState, start: int, stop: int) -> None:
    """Give up the states after pages [start, stop) of an answer but those before checkpoints.

    A decode leaves one at each border. Kept, they would push out those that others return to.
    """
    lock, distance = request.lock, lane.settings.checkpoint_distance
    assert lock is not None, "only a running request publishes"
    assert distance is not None, "there are states"
    kept = checkpoints_between(start, stop, distance, request.start.checkpoints)
    for page in range(max(start, request.chain.num_prompt_pages), stop):
        for group, each in enumerate(lane.settings.layout.groups):
            if each.kind is GroupKind.STATE and page + 1 not in kept:
                lane.l1.drop_inner(lock, group, page)


def places_to_return(
    settings: SchedulerSettings, request: RequestState, num_known_pages: int
) -> tuple[int, ...]:
    """The places, beside regular ones, before which a request leaves windows for later ones.

    That is the end of its prompt, the last place at which the same prompt could be taken up, and
    where it parts from all before, which is learnt from what outlived its window in L1 and L2
    (`num_known_pages`) or L3, and from the prompts before.
    """
    known = num_known_pages, request.prefetch.num_full_pages, request.num_shared_pages or 0
    num_reusable = settings.reusable_pages(request.num_prompt)
    return max(known), request.chain.num_prompt_pages, num_reusable


def keep_window(lane: Lane, request: RequestState, end: int) -> None:
    """Offer the windows before a place to L2, as far as the request still holds them whole.

    A place that the tree has not reached yet is offered as it is published: the tree may have got
    its pages from others meanwhile, and the request's own go then.
    """
    lock = request.lock
    if any(request.unhealed) or lock is None or end > lock.num_pages:
        return
    for group, reach in enumerate(lane.settings.reaches):
        if reach is None:
            continue
        pages = window_before(end, reach)
        page_ids = request.table.pages(pages.start, pages.stop)[group]
        # A window with a gap is of no use: no prefix can be taken up behind it.
        if page_ids.all():
            keys = split_keys(request.chain.keys(pages.stop, pages.start))
            lane.backups.offer_window(
                group, keys, page_ids.tolist(), is_returning=request.is_returning
            )


def heal(lane: Lane, request: RequestState) -> None:
    """Give the tree the windows that a request's load has brought.

    Where the tree got a page in the meantime, the request's duplicate goes.
    """
    places = request.unhealed
    if not any(places):
        return
    lock = request.lock
    assert lock is not None, "only a running request has loaded"
    start = min([pages[0] for pages in places if pages])
    run = request.table.pages(start, lock.num_pages)
    own = tuple([_only(ids, pages, start) for ids, pages in zip(run, places, strict=True)])

    held = lane.l1.heal(request.chain, lock, start, own)
    kept: PageIds = tuple(
        [
            int32_array(np.where(given != 0, in_tree, ids))
            for given, in_tree, ids in zip(own, held, run, strict=True)
        ]
    )
    lane.use_pages_of_tree(request, start, run, kept)


def _only(page_ids: Int32Array, pages: Sequence[int], start: int) -> Int32Array:
    """The ids of these pages in a run that begins with page `start`, 0 for the others."""
    places = np.asarray(pages, dtype=np.intp) - start
    run = np.zeros_like(page_ids)
    run[places] = page_ids[places]
    return int32_array(run)
