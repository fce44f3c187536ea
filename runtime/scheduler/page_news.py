"""What those who follow the caches of a replica are still to be told."""

from collections import deque
from collections.abc import Iterable

from raydix.ids import ConnectionId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.messages.kv_events import (
    KvEvent,
    PagesRemoved,
    PagesStored,
    ShortKeys,
    Tier,
    TierCleared,
)
from raydix.runtime.scheduler.events import TellFollower
from raydix.runtime.scheduler.key_news import KeyNews

_PIECE_BYTES = 256 << 10
"""The keys and tokens that a follower is told with one event, unless one alone has more."""
_PIECE_KEYS = 4096


class PageNews:
    """Owns: who follows the caches, and what has changed since they were told.

    A new follower is told first what there is, piece by piece: what changes meanwhile comes behind
    that, so that it hears all in the order in which it happened. Without followers nothing is kept.
    """

    def __init__(self) -> None:
        self.keys = KeyNews()
        """What clients that route are told of the same, when they ask."""
        self._left: dict[ConnectionId, deque[KvEvent]] = {}
        """What each follower is still to be told, but for the latest changes."""
        self._changes: list[KvEvent] = []
        self._behind: set[ConnectionId] = set()
        """The followers that were not told yet all that there was when they came."""
        self._num_known: dict[ConnectionId, int] = {}
        """How many of the latest changes had been made when a follower came, in the same turn."""

    @property
    def is_followed(self) -> bool:
        """Whether anybody is to be told of changes."""
        return bool(self._left) or self.keys.is_followed

    @property
    def has_more(self) -> bool:
        """Whether some follower is to be told something now."""
        return bool(self._changes or self._behind)

    def begin(self, connection: ConnectionId, state: Iterable[KvEvent]) -> None:
        """Take a new follower, which is told first what there is now."""
        self._left[connection] = deque(state)
        self._behind.add(connection)
        self._num_known[connection] = len(self._changes)

    def end(self, connection: ConnectionId) -> None:
        """Forget a follower that has gone."""
        self._left.pop(connection, None)
        self._behind.discard(connection)
        self._num_known.pop(connection, None)

    def note(self, event: KvEvent) -> None:
        """Note a change of what is followed."""
        if self.is_followed:
            self._changes.append(event)

    def note_shared(self, tier: Tier, group: int, came: bytes, gone: bytes) -> None:
        """Note which pages a tier that all lanes share has got and lost, by short keys."""
        if gone:
            self.note(PagesRemoved(tier=tier, lane=None, group=group, keys=ShortKeys(gone)))
        if came:
            self.note(PagesStored(tier=tier, lane=None, group=group, keys=ShortKeys(came)))

    def take(self) -> list[TellFollower]:
        """Take what followers are told now, in order."""
        changes = self._hand_on_changes()
        if not self._behind:
            # As a rule: nobody has just come.
            return [
                TellFollower(connection=connection, events=changes, is_whole=True)
                for connection in self._left
                if changes
            ]
        told = []
        for connection, left in self._left.items():
            was_behind, events = connection in self._behind, changes
            if was_behind:
                events = _take_piece(left)
                if not left:
                    self._behind.remove(connection)
            if events or was_behind:
                is_whole = connection not in self._behind
                told.append(TellFollower(connection=connection, events=events, is_whole=is_whole))
        return told

    def _hand_on_changes(self) -> tuple[KvEvent, ...]:
        """Let changes come behind what is left for those who are behind; returns them."""
        changes, self._changes = tuple(self._changes), []
        for connection in self._behind:
            num_known = self._num_known.pop(connection, 0)
            self._left[connection].extend(changes[num_known:])
        self.keys.note(changes)
        return changes


def shared_state(tier: Tier, group: int, keys: Iterable[bytes]) -> list[PagesStored]:
    """What there is of a tier that all lanes share, in pieces."""
    listed = list(keys)
    return [
        PagesStored(
            tier=tier,
            lane=None,
            group=group,
            keys=ShortKeys(b"".join(listed[start : start + _PIECE_KEYS])),
        )
        for start in range(0, len(listed), _PIECE_KEYS)
    ]


def _take_piece(left: deque[KvEvent]) -> tuple[KvEvent, ...]:
    """Take the next events that fit into one piece; one at least, if there are any."""
    events: list[KvEvent] = []
    num_bytes = 0
    while left and num_bytes < _PIECE_BYTES:
        event = left.popleft()
        events.append(event)
        num_bytes += _num_bytes(event)
    return tuple(events)


def _num_bytes(event: KvEvent) -> int:
    """The bytes of an event, roughly."""
    match event:
        case PagesStored():
            run = event.run
            return len(event.keys) + (0 if run is None else len(run.packed_tokens))
        case PagesRemoved():
            return len(event.keys)
        case TierCleared():
            return MIRROR_KEY_BYTES
