"""Whether a waiting request runs now, or what it waits for, by its facts. Pure functions."""

from dataclasses import dataclass

from raydix.runtime.scheduler.life.facts import Coming, Facts, Leader
from raydix.runtime.scheduler.life.load_choice import Assessment
from raydix.runtime.scheduler.request.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.request.request_order import goes_by_match
from raydix.runtime.scheduler.settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class Follow:
    """The request waits for another one: until that brings a page, or runs no more."""

    leader: Leader


@dataclass(frozen=True, slots=True)
class WaitForPages:
    """If it has room, the request waits for pages on their way from L3; others may go first."""

    found: Assessment
    """What it matches in L1, behind which pages that have come may be loaded ahead."""
    until_s: float | None
    """The time at which it waits no longer; None: it waits for all of them."""


@dataclass(frozen=True, slots=True)
class LookUpLost:
    """If it has room, the request is looked up once more: L2 has lost what L3 had brought."""

    found: Assessment


@dataclass(frozen=True, slots=True)
class Run:
    """If it has room, the request runs, or asks for a lease on what it loads."""

    found: Assessment
    coming: Coming | None
    """What it waits for no longer."""


@dataclass(frozen=True, slots=True)
class FallBack:
    """Less of the request is cached than at its last place: it gets another one, by `num_pages`."""

    num_pages: int
    then: Follow | WaitForPages | LookUpLost | Run
    """What is done if it still comes first."""


Decision = FallBack | Follow | WaitForPages | LookUpLost | Run


def decide(settings: SchedulerSettings, facts: Facts, now_s: float) -> Decision:
    """What becomes of a waiting request; whether it has room is seen when that is carried out."""
    chosen = _choose(settings, facts, now_s)
    is_by_match = goes_by_match(settings.policy) and settings.prefix_caching
    num_pages = facts.found.prefix.num_pages
    if is_by_match and num_pages < facts.num_placed_pages:
        return FallBack(num_pages, chosen)
    return chosen


def _choose(
    settings: SchedulerSettings, facts: Facts, now_s: float
) -> Follow | WaitForPages | LookUpLost | Run:
    if facts.leader is not None:
        return Follow(facts.leader)
    if facts.coming is not None and facts.coming.is_asked:
        until_s = _waits_until_s(settings, facts.coming, now_s)
        if until_s is None or now_s < until_s:
            return WaitForPages(facts.found, until_s)
    if facts.has_lost_pages:
        return LookUpLost(facts.found)
    return Run(facts.found, facts.coming)


def _waits_until_s(settings: SchedulerSettings, coming: Coming, now_s: float) -> float | None:
    """When pages on their way are worth no more patience; None: they are in any case."""
    first_s = coming.first_runnable_s
    return prefetch_deadline_s(
        settings.prefetch,
        first_runnable_s=now_s if first_s is None else first_s,
        pending_tokens=coming.num_tokens,
        recompute_s=coming.recompute_s,
        answer_s=coming.answer_s,
    )
