"""What Schedulers are told of L2's keys."""

from collections import Counter

from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.messages.mirror import MirrorUpdate


def take_changes(index: HostIndex, counters: Counter[str]) -> list[MirrorUpdate]:
    """Take the keys that became READY or were dropped since the last call, for all Schedulers."""
    updates = []
    for group in range(index.num_groups):
        ready, dropped = index.take_changes(group)
        counters["pages_dropped"] += len(dropped)
        if ready or dropped:
            update = MirrorUpdate(
                ready=b"".join([key[:MIRROR_KEY_BYTES] for key in ready]),
                dropped=b"".join([key[:MIRROR_KEY_BYTES] for key in dropped]),
                group=group,
            )
            updates.append(update)
    return updates


class HostMirror:
    """Owns: how far the mirror of one Scheduler has been filled.

    A new Scheduler gets all keys piece by piece, in a walk over the index, while changes go out at
    once. In the end its mirror is right: a key that is READY then either became so since the
    Scheduler attached, and its last change said so, or was READY all along, and the walk met it.
    And each update agrees with the index at the end of its turn, so no key that the walk told of is
    one whose drop was told before.
    """

    def __init__(self, index: HostIndex, piece_pages: int) -> None:
        """Begin to tell all keys to a Scheduler that has attached and knows none."""
        self._index = index
        self._piece_pages = piece_pages
        self._walked_to: int | None = 0
        """The first page that the Scheduler was not told of yet; None: it was told of all."""

    @property
    def has_work(self) -> bool:
        """Whether the walk over the index goes on."""
        return self._walked_to is not None

    def take_piece(self) -> list[MirrorUpdate]:
        """Go on with the walk, once the changes have been taken."""
        if self._walked_to is None:
            return []
        page_ids = self._index.ready_pages(self._walked_to, self._piece_pages)
        self._walked_to = page_ids[-1] + 1 if len(page_ids) == self._piece_pages else None

        by_group: dict[int, list[bytes]] = {}
        for name in map(self._index.name, page_ids):
            if name is not None:
                by_group.setdefault(name[0], []).append(name[1][:MIRROR_KEY_BYTES])
        return [MirrorUpdate(ready=b"".join(keys), group=group) for group, keys in by_group.items()]
