"""Which objects L3 was last seen to hold, for Schedulers that tell others."""

from collections.abc import Iterator

from raydix.ids import L3_SOURCE, ConnectionId
from raydix.runtime.cache.host.events import ToScheduler
from raydix.runtime.cache.host.unanswered import Order
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES, short_keys
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus
from raydix.runtime.messages.mirror import MirrorCleared, MirrorUpdate

_PIECE_KEYS = 4096
_Name = tuple[int, bytes]
"""KV group and short key."""


class StoredObjects:
    """Owns: the names of objects that L3's answers have shown to be there.

    A hint: others may remove them unseen, and whatever was there before is not known until it is
    asked for. Those that were seen first are forgotten where there are too many.
    """

    def __init__(self, max_objects: int) -> None:
        """Know none. `max_objects`: how many are known at most; 0: nobody wants to know."""
        self._max_objects = max_objects
        self._known: dict[_Name, None] = {}
        self._changes: dict[_Name, bool] = {}
        """Whether each name has come, or gone, since the last `take_news`."""
        self._is_cleared = False

    def __iter__(self) -> Iterator[_Name]:
        return iter(self._known)

    def note(self, order: Order, done: ObjectsDone) -> None:
        """Note what the answer to an order shows."""
        if not self._max_objects:
            return
        if not order.keys:
            # The removal of all: even one that failed may have removed some.
            self.forget_all()
            return
        shorts = short_keys(order.keys)
        for place, code in enumerate(done.statuses):
            name = order.group, shorts[place * MIRROR_KEY_BYTES : (place + 1) * MIRROR_KEY_BYTES]
            status = ObjectStatus(code)
            if status is ObjectStatus.OK:
                self._add(name)
            elif status is ObjectStatus.MISSING or status.is_bad_object:
                self._remove(name)
        while len(self._known) > self._max_objects:
            self._remove(next(iter(self._known)))

    def forget_all(self) -> None:
        """Forget all names: nobody can reach the objects, or they are gone."""
        self._is_cleared = self._is_cleared or bool(self._known)
        self._known.clear()
        self._changes.clear()

    def take_news(self) -> list[MirrorUpdate | MirrorCleared]:
        """Take what Schedulers are to be told since the last call."""
        news: list[MirrorUpdate | MirrorCleared] = []
        if self._is_cleared:
            news.append(MirrorCleared(source=L3_SOURCE))
        changes, self._changes, self._is_cleared = self._changes, {}, False
        by_group: dict[int, tuple[list[bytes], list[bytes]]] = {}
        for (group, key), has_come in changes.items():
            by_group.setdefault(group, ([], []))[has_come].append(key)
        for group, (dropped, ready) in by_group.items():
            news.append(
                MirrorUpdate(
                    source=L3_SOURCE,
                    ready=b"".join(ready),
                    dropped=b"".join(dropped),
                    group=group,
                )
            )
        return news

    def introduce(self, connection: ConnectionId) -> list[ToScheduler]:
        """What a Scheduler that has attached is told first: all names."""
        by_group: dict[int, list[bytes]] = {}
        for group, key in self._known:
            by_group.setdefault(group, []).append(key)
        pieces = [
            MirrorUpdate(
                source=L3_SOURCE, ready=b"".join(keys[start : start + _PIECE_KEYS]), group=group
            )
            for group, keys in by_group.items()
            for start in range(0, len(keys), _PIECE_KEYS)
        ]
        return [ToScheduler(connection, piece) for piece in pieces]

    def _add(self, name: _Name) -> None:
        if name not in self._known:
            self._known[name] = None
            self._changes[name] = True

    def _remove(self, name: _Name) -> None:
        if name in self._known:
            del self._known[name]
            self._changes[name] = False
