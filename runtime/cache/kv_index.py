"""An index that follows the events of caches, and knows of each tier which pages it has."""

from typing import assert_never

from raydix.errors import AccountingError
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES, split_keys
from raydix.runtime.messages.kv_events import (
    KvEvent,
    PagesRemoved,
    PagesStored,
    ShortKeys,
    Tier,
    TierCleared,
)

Place = tuple[Tier, int | None]
"""A tier, and the lane whose L1 it is; None for the tiers that all lanes share."""


class KvIndex:
    """Owns: the short keys of the pages of each place, by KV group, as events have told.

    It is exact as long as no event is lost or comes twice, and says so as soon as one has.
    """

    def __init__(self) -> None:
        """Start empty, as a Scheduler does; what is in its caches is told first."""
        self._places: dict[Place, dict[int, set[bytes]]] = {}

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that have pages, or had some."""
        return tuple(self._places)

    def keys(self, place: Place, group: int) -> frozenset[bytes]:
        """The short keys of the pages of a KV group."""
        return frozenset(self._places.get(place, {}).get(group, ()))

    def groups(self, place: Place) -> dict[int, frozenset[bytes]]:
        """The short keys by KV group, of groups that have pages."""
        groups = self._places.get(place, {})
        return {group: frozenset(keys) for group, keys in groups.items() if keys}

    def has(self, place: Place, group: int, key: bytes) -> bool:
        """Whether a place has this page of a KV group, by its short key."""
        return key in self._places.get(place, {}).get(group, ())

    def has_anywhere(self, key: bytes) -> bool:
        """Whether some place has this page, of any KV group."""
        return any(key in keys for groups in self._places.values() for keys in groups.values())

    def count_leading(self, place: Place, group: int, keys: ShortKeys, start: int = 0) -> int:
        """Pages of a chain from page `start` on that a place has, up to the first gap."""
        known = self._places.get(place, {}).get(group)
        if not known:
            return 0
        chain = split_keys(keys[start * MIRROR_KEY_BYTES :], MIRROR_KEY_BYTES)
        return next((num for num, key in enumerate(chain) if key not in known), len(chain))

    def follow(self, event: KvEvent) -> None:
        """Take an event. Raises AccountingError if it tells of a page twice, or of one not there.

        The index may lack something then: it is to be built anew, from what there is.
        """
        match event:
            case PagesStored():
                groups = self._places.setdefault((event.tier, event.lane), {})
                held = groups.setdefault(event.group, set())
                keys = set(split_keys(event.keys, MIRROR_KEY_BYTES))
                self._require(event, not held & keys, "are there already", len(keys))
                held |= keys
            case PagesRemoved():
                held = self._places.get((event.tier, event.lane), {}).get(event.group, set())
                keys = set(split_keys(event.keys, MIRROR_KEY_BYTES))
                self._require(event, keys <= held, "are not there", len(keys))
                held -= keys
            case TierCleared():
                self._places.pop((event.tier, event.lane), None)
            case _:
                assert_never(event)

    def _require(
        self, event: PagesStored | PagesRemoved, is_right: bool, fault: str, num_keys: int
    ) -> None:
        """Raise AccountingError unless all is right, and no key of the event came twice in it."""
        if not is_right or num_keys * MIRROR_KEY_BYTES != len(event.keys):
            raise AccountingError(
                f"{type(event).__name__} of {num_keys} pages in {event.tier}, lane {event.lane}, "
                f"group {event.group}: some {fault}. An event was lost, or came twice."
            )
