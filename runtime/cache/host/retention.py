"""What L2 does with hints and pins: whose pages go first, whose last, and whose not at all.

A bounded L3 hears of hints, too, as far as pages of L2 tell which objects are a session's. What is
kept there is what L2 keeps: the budgets here hold for both.
"""

from collections.abc import Sequence
from typing import Any, assert_never

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS, HostPageId, UserId
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.page_run import HintedPages
from raydix.runtime.cache.host.pins import HostPins
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.keep_budget import Keep, KeepBudget
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.standing import Idle, Kept, retention_of, standing_after
from raydix.runtime.messages.retention import EndUse, ReleasePin, RetainObjects

_PIECE_KEYS = 4096
_MAX_PINNED_FRACTION = 0.25
"""Pins may hold this part of L2 at most: with what prefetch fills, less than all of it."""


class HostRetention:
    """Owns: which sessions have pages kept, what clients have pinned in L2, and what L3 is still to
    hear of hints.
    """

    def __init__(self, index: HostIndex, settings: HostSettings, geometry: ArenaGeometry) -> None:
        kept_fraction = settings.max_kept_fraction
        self._index = index
        self._budget = KeepBudget(int(kept_fraction * geometry.num_host_pages))
        self._object_hints: list[RetainObjects] = []
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

    def expire(self, now_s: float) -> None:
        """Let what is kept or pinned no longer go as its use and the policy say."""
        self.pins.expire(now_s)
        for ended in self._budget.expire(now_s):
            self._index.retain(ended.user, Idle(ended.until_s))

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
        if message.session_id is not None:
            self._end_object_hints(user)
        if message.retention is None:
            return

        standing = standing_after(message.retention, now_s)
        concerned = self._index.retain(user, standing)
        self._hint_objects(concerned, now_s)
        num_pages = sum(len(each.pages) for each in concerned)
        if isinstance(standing, Kept) and num_pages:
            self.expire(now_s)
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
                self._end_object_hints(given_up.user)

    def note_written(self, page_ids: Sequence[HostPageId], now_s: float) -> None:
        """L3 has got these pages: what hints say of them holds for their objects, too."""
        self._hint_objects(self._index.hinted(page_ids), now_s)

    def take_object_hints(self) -> list[RetainObjects]:
        """Take what L3 is to hear since the last call."""
        hints, self._object_hints = self._object_hints, []
        return hints

    def _end_object_hints(self, user: UserId) -> None:
        self._object_hints.append(RetainObjects(user=user))

    def _hint_objects(self, concerned: Sequence[HintedPages], now_s: float) -> None:
        for each in concerned:
            retention = retention_of(each.standing, now_s)
            if retention is None:
                continue
            names = map(self._index.name, map(HostPageId, each.pages.tolist()))
            keys = [name[1] for name in names if name is not None]
            for start in range(0, len(keys), _PIECE_KEYS):
                hint = RetainObjects(
                    user=each.user,
                    keys=b"".join(keys[start : start + _PIECE_KEYS]),
                    group=each.group,
                    retention=retention,
                )
                self._object_hints.append(hint)
