"""The protocol that every L3 backend implements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from raydix.ids import PageKey, UserId
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace


class ObjectName(NamedTuple):
    """A page of one KV group, within the namespace that the backend was opened with."""

    key: PageKey
    group: int


class ObjectRef(NamedTuple):
    """An object and its place in the arena, header included."""

    name: ObjectName
    page: memoryview
    offset: int
    """The offset at which `page` begins in the arena, in bytes."""

    def fill(self, content: bytes | memoryview) -> None:
        """Copy an object of the page's size into the page."""
        self.page[:] = content


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a backend knows of an object without reading it."""

    size_bytes: int
    modified_s: float | None
    """The time of the last change in Unix time; None: the backend does not know it."""


class StorageBackend(Protocol):
    """Stores pages by name.

    Methods are synchronous, and all but `open`, `tidy` and `close` may be called from several
    threads. They return one result per object, in order, never a count: a hole in a batch does not
    shift what follows. None raises for the sake of one object. Deadlines are in the monotonic time
    of the clock that the backend was given; past one, the rest of the batch is TIMED_OUT. A backend
    checks no content: the caller verifies every page that it gets.
    """

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Prepare to serve one namespace from and into `arena`, or raise ConfigError."""
        ...

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Tell whether objects are stored: OK or MISSING, which is a hint and not a promise."""
        ...

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Copy objects into their pages. A page whose status is not OK has undefined content."""
        ...

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Store pages, each visible whole or not at all.

        A name that exists keeps its bytes, and its status is OK, too.
        """
        ...

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Remove objects; their statuses are OK or MISSING."""
        ...

    def clear(self) -> ObjectStatus:
        """Remove every object of the namespace."""
        ...

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell sizes and ages; None for what is missing."""
        ...

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """Heed a hint of when a user uses objects again, if the backend chooses what goes first.

        Those to go first are named first; what is not there is passed by. A hint holds until the
        object is used. None: what this user's hints said of any object holds no longer; of
        SEVERAL_USERS, what anybody's said. Returns soon: orders wait meanwhile.
        """
        ...

    def stats(self) -> dict[str, int]:
        """Counters, and `objects`, `bytes`, `max_bytes` where the backend knows them."""
        ...

    def last_error(self) -> LastError | None:
        """What the store said when it last failed; None if it never did."""
        ...

    def tidy(self) -> bool:
        """Do a little of what nobody waits for, such as evicting; whether there is more to do."""
        ...

    def close(self) -> None:
        """Release what `open` took. Stored objects stay."""
        ...
