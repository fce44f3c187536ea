"""How others follow the caches of a replica, from the first thing that they are told."""

from collections.abc import Iterator, Sequence

from raydix.runtime.messages.kv_events import KvEvent, Tier
from raydix.runtime.scheduler.events import FollowerAttached, FollowerLost
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.page_news import PageNews, shared_state
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.host_view import HostView


class Followers:
    """Takes in followers that come and go, and tells them what is due."""

    def __init__(
        self,
        settings: SchedulerSettings,
        news: PageNews,
        lanes: Sequence[Lane],
        view: HostView,
        outbox: Outbox,
    ) -> None:
        self._settings = settings
        self._news, self._lanes, self._view = news, lanes, view
        self._outbox = outbox

    def take(self, event: FollowerAttached | FollowerLost) -> None:
        """Take a follower in, or forget it."""
        match event:
            case FollowerAttached():
                self._news.begin(event.connection, self._state())
            case FollowerLost():
                self._news.end(event.connection)

    def tell(self) -> bool:
        """Tell them what is due; returns whether something is left, for the next tick."""
        for effect in self._news.take():
            self._outbox.emit(effect)
        return self._news.has_more

    def _state(self) -> Iterator[KvEvent]:
        """All that there is. L1 comes first, which says what its pages hold."""
        for lane in self._lanes:
            yield from lane.l1.news.state()
        for tier, mirror in ((Tier.L2, self._view.keys), (Tier.L3, self._view.objects)):
            for group in range(self._settings.num_groups):
                yield from shared_state(tier, group, mirror.told(group))
