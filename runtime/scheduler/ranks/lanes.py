"""All lanes of a replica."""

from collections.abc import Sequence

from raydix.runtime.scheduler.page_news import PageNews
from raydix.runtime.scheduler.pages.use_counts import UseCounts
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.host_view import HostView


def make_lanes(
    settings: SchedulerSettings, groups: Sequence[StepGroup], view: HostView, news: PageNews
) -> list[Lane]:
    """Make the lanes of all step groups, in order, which count uses of pages together."""
    uses = UseCounts(settings.num_lanes * max(settings.num_pages))
    return [
        Lane(index, settings, group, view, uses, news) for group in groups for index in group.lanes
    ]
