"""What clients that route are still to be told of the keys of one replica's caches."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from raydix.errors import AccountingError
from raydix.ids import ClientId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.messages.kv_events import KvEvent, PagesRemoved, PagesStored, Tier, TierCleared

_PIECE_BYTES = 256 << 10
"""The keys that a client is told with one message, unless one event alone has more."""
_EVENT_BYTES = 64
"""About what an event takes besides its keys."""
_MAX_CHANGES = 100_000
"""The most changes that wait for a client that does not ask; then it is told all anew."""


@dataclass(slots=True)
class _Client:
    left: deque[KvEvent]
    """What it is still to be told, in order."""
    num_old: int
    """How many of these it is told because they were there when it came."""


class KeyNews:
    """Owns: which clients follow the keys of one KV group, and what each is still to be told.

    A client is told when it asks. If too much comes meanwhile it is forgotten, to begin anew.
    """

    def __init__(self) -> None:
        self._clients: dict[ClientId, _Client] = {}
        self._group = 0

    @property
    def is_followed(self) -> bool:
        """Whether anybody is to be told of changes."""
        return bool(self._clients)

    def begin(self, client_id: ClientId, state: Iterable[KvEvent], group: int) -> None:
        """Take a client, which is told first what there is now of a KV group, that of all."""
        self._group = group
        left = deque(_keys_alone(state, group))
        self._clients[client_id] = _Client(left, len(left))

    def end(self, client_id: ClientId) -> None:
        """Forget a client, if it is there."""
        self._clients.pop(client_id, None)

    def follows(self, client_id: ClientId) -> bool:
        """Whether a client is told of all changes; False for one that is to begin, perhaps anew."""
        return client_id in self._clients

    def note(self, changes: Iterable[KvEvent]) -> None:
        """Note changes of what is followed."""
        if not self._clients:
            return
        told = list(_keys_alone(changes, self._group))
        slow = []
        for client_id, client in self._clients.items():
            client.left.extend(told)
            if len(client.left) - client.num_old > _MAX_CHANGES:
                slow.append(client_id)
        for client_id in slow:
            del self._clients[client_id]

    def has_more(self, client_id: ClientId) -> bool:
        """Whether something is left to tell a client that follows."""
        return bool(self._clients[client_id].left)

    def take(self, client_id: ClientId) -> tuple[tuple[KvEvent, ...], bool]:
        """Take the next events for a client that follows, as many as go into one message.

        Returns, too, whether with them it has been told of all that there was when it came.
        """
        client = self._clients[client_id]
        events: list[KvEvent] = []
        num_bytes = 0
        while client.left and num_bytes < _PIECE_BYTES:
            event = client.left.popleft()
            events.append(event)
            num_bytes += _EVENT_BYTES
            num_bytes += 0 if isinstance(event, TierCleared) else len(event.keys)
        client.num_old = max(0, client.num_old - len(events))
        return tuple(events), client.num_old == 0

    def check(self) -> None:
        """Raise AccountingError if more waits for a client than may."""
        for client_id, client in self._clients.items():
            if not 0 <= len(client.left) - client.num_old <= _MAX_CHANGES:
                raise AccountingError(
                    f"{client_id}: {len(client.left)} events wait, {client.num_old} of them old"
                )


def _keys_alone(events: Iterable[KvEvent], group: int) -> Iterator[KvEvent]:
    """The events of L1 and L2 in a group, without the tokens that pages hold."""
    for event in events:
        match event:
            case PagesStored() | PagesRemoved() if event.group != group or event.tier is Tier.L3:
                continue
            case PagesStored() if event.run is not None:
                yield from _pieces(msgspec.structs.replace(event, run=None))
            case PagesStored() | PagesRemoved():
                yield from _pieces(event)
            case TierCleared() if event.tier is not Tier.L3:
                yield event


def _pieces(event: PagesStored | PagesRemoved) -> Iterator[PagesStored | PagesRemoved]:
    """An event in pieces of which each goes into a message."""
    if len(event.keys) <= _PIECE_BYTES:
        yield event
        return
    width = max(1, _PIECE_BYTES // MIRROR_KEY_BYTES) * MIRROR_KEY_BYTES
    for start in range(0, len(event.keys), width):
        yield msgspec.structs.replace(event, keys=event.keys[start : start + width])
