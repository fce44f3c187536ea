"""What L2 does with hints and pins: whose pages go first, whose last, and whose not at all."""

from typing import Any, assert_never

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pins import HostPins
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.keep_budget import Keep, KeepBudget
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.standing import Idle, Kept, standing_after
from raydix.runtime.messages.retention import EndUse, ReleasePin

_MAX_PINNED_FRACTION = 0.25
"""Pins may hold this part of L2 at most: with what prefetch fills, less than all of it."""


class HostRetention:
    """Owns: which sessions have pages kept in L2, and what clients have pinned there."""

    def __init__(self, index: HostIndex, settings: HostSettings, geometry: ArenaGeometry) -> None:
        kept_fraction = settings.max_kept_fraction
        self._index = index
        self._budget = KeepBudget(int(kept_fraction * geometry.num_host_pages))
        pinned_fraction = min(kept_fraction, _MAX_PINNED_FRACTION)
        self.pins = HostPins(
            index,
            settings.rule,
            page_size=settings.page_size,
            max_bytes=int(pinned_fraction * geometry.size_bytes),
        )

    def figures(self, now_s: float) -> dict[str, Any]:
        """What is kept and pinned now, and for whom."""
        return {
            "l2_kept": [keep.figures(now_s) for keep in self._budget.keeps(now_s)],
            "l2_pins": self.pins.figures(now_s),
            "l2_pins_given_up": self.pins.num_given_up,
        }

    def check(self, now_s: float) -> None:
        """Raise AccountingError unless the budgets hold, and nothing is kept beside them."""
        self.pins.check(now_s)
        self._budget.check()
        users = {keep.user for keep in self._budget.keeps(now_s)}
        kept = self._index.kept_users()
        if not kept <= users:
            raise AccountingError(f"L2 keeps pages of {len(kept)} users; {len(users)} may")

    def take(self, message: EndUse | ReleasePin, now_s: float) -> None:
        """Take what a Scheduler says of a session or of a pin."""
        match message:
            case EndUse():
                self.end_use(message, now_s)
            case ReleasePin():
                self.pins.release(message.tenant, message.pin_id)
            case _:
                assert_never(message)

    def end_use(self, message: EndUse, now_s: float) -> None:
        """A request has ended, or there is a hint of what comes next of its session."""
        user = message.user
        keys = split_keys(message.keys)
        for group in range(self._index.num_groups):
            self._index.end_use(group, keys, user)
        self._index.rest(user)
        if user == SEVERAL_USERS:
            return
        self._budget.forget(message.tenant, user)
        if message.retention is None:
            return

        standing = standing_after(message.retention, now_s)
        num_pages = self._index.retain(user, standing)
        if isinstance(standing, Kept) and num_pages:
            keep = Keep(
                tenant=message.tenant,
                user=user,
                num_pages=num_pages,
                since_s=now_s,
                until_s=standing.until_s,
                cache_salt=message.cache_salt,
                session_id=message.session_id,
            )
            for given_up in self._budget.add(keep):
                self._index.retain(given_up.user, Idle(given_up.since_s))
