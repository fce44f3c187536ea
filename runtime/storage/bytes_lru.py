"""Which objects a bounded store keeps."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from raydix.errors import AccountingError


class BytesLru:
    """Owns: the sizes, order of use and users of a store's objects. Never gives up an object that is in use."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._users: Counter[str] = Counter()
        self._total_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def names(self) -> tuple[str, ...]:
        """All objects, the least recently used first."""
        return tuple(self._sizes)

    def size(self, name: str) -> int | None:
        """Bytes of an object; None if it is unknown."""
        return self._sizes.get(name)

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects."""
        return self._total_bytes

    def make_room(self, size_bytes: int) -> list[str] | None:
        """Give up the least recently used objects until `size_bytes` more fit; None, and no change, if they cannot."""
        if self._max_bytes is None:
            return []
        excess = self._total_bytes + size_bytes - self._max_bytes
        victims: list[str] = []
        for name, size in self._sizes.items():
            if excess <= 0:
                break
            if not self._users[name]:
                victims.append(name)
                excess -= size
        if excess > 0:
            return None
        for name in victims:
            self.remove(name)
        return victims

    def add(self, name: str, size_bytes: int) -> None:
        """Enter an object as the most recently used; an earlier one of that name is replaced."""
        self.remove(name)
        self._sizes[name] = size_bytes
        self._total_bytes += size_bytes

    def remove(self, name: str) -> None:
        """Forget an object; nothing happens if it is unknown."""
        self._total_bytes -= self._sizes.pop(name, 0)

    def touch(self, names: Iterable[str]) -> None:
        """Mark objects as used, in this order."""
        for name in names:
            if name in self._sizes:
                self._sizes.move_to_end(name)

    def acquire(self, name: str) -> None:
        """Somebody reads or writes the object."""
        self._users[name] += 1

    def release(self, name: str) -> None:
        """The other end of `acquire`."""
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]

    def check(self) -> None:
        """Raises AccountingError if the sum of sizes is not what is on record, or a count of users is negative."""
        total = sum(self._sizes.values())
        if total != self._total_bytes or any(count < 0 for count in self._users.values()):
            raise AccountingError(f"objects have {total} bytes; {self._total_bytes} on record; users {self._users}")
