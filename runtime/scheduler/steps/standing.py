"""When ranks may repeat a plan by themselves, for how long, and when they need another one.

A plan stands while nothing but decodes is to be done. Another one comes when a request arrives,
ends or gets on, and before the steps for which the pages are reserved have run out.
"""

from raydix.runtime.scheduler.ranks.decode_rows import DecodeRows
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.steps.draft import Draft


def may_stand(lane: Lane, draft: Draft) -> bool:
    """Whether the ranks may repeat a drafted plan until they get another one.

    They may not while a prompt is computed or somebody has a turn, for then each step is planned,
    or while masks of grammars are made. Ranks that step together would not all hear of the next
    plan in the same step.
    """
    settings = lane.settings
    if not settings.max_repeats or settings.ranks_per_group > 1:
        return False
    return not (draft.rows or _has_prompts(lane) or lane.grammars.is_used)


def repeated(lane: Lane, rows: DecodeRows) -> DecodeRows:
    """Rows that ranks may repeat, by pages for further steps, as far as some can be had."""
    max_repeats = lane.settings.max_repeats
    for slot in lane.batch.lacks_room(rows, max_repeats):
        request = lane.batch.request(slot)
        num_tokens = request.num_planned + min(
            max_repeats, request.max_tokens - request.num_sampled
        )
        num_pages = -(-num_tokens // lane.settings.page_size)
        while len(request.table) < num_pages:
            if not lane.grow_table(request, 1):
                break
    return lane.batch.repeat(rows, max_repeats)


def is_plan_wanted(lane: Lane) -> bool:
    """Whether a plan is due, though the ranks may repeat the last one; True if they may not."""
    num_standing = lane.in_flight.num_standing
    if num_standing <= max(1, lane.settings.max_repeats // 2):
        return True
    return lane.batch.has_changed or bool(lane.in_flight.ready_loads) or _has_prompts(lane)


def needs_no_plan(lane: Lane) -> bool:
    """Whether no plan could hold anything: nobody waits or runs, and nothing is to be copied.

    As long as steps are in flight, ranks may repeat them, and have to be told when to end.
    """
    in_flight = lane.in_flight
    is_empty = not (lane.running or in_flight.steps or in_flight.ready_loads)
    return is_empty and not (len(lane.waiting) or len(lane.backups))


def repeats_in_vain(lane: Lane) -> bool:
    """Whether the ranks are about to repeat a plan whose requests have all ended."""
    return not len(lane.batch) and lane.in_flight.num_standing > 0


def _has_prompts(lane: Lane) -> bool:
    return bool(lane.prefilling) or lane.waiting.has_turns
