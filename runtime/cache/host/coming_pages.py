"""Which pages that L2 lacks are to come, and for whom."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from raydix.ids import PageKey, UserId

_MAX_PAGES = 1 << 18


@dataclass(frozen=True, slots=True)
class Coming:
    """Who is to bring pages, and since when it has had the chain in use that they go on."""

    user: UserId
    since_s: float


class ComingPages:
    """Owns: the pages that users' chains lacked when they were last looked up, until they end."""

    def __init__(self) -> None:
        self._keys: OrderedDict[UserId, set[PageKey]] = OrderedDict()
        self._coming: dict[PageKey, Coming] = {}

    def note(self, keys: Sequence[PageKey], user: UserId, now_s: float) -> None:
        """Note that a user is to bring these pages."""
        if not keys:
            return
        coming = Coming(user, now_s)
        self._keys.setdefault(user, set()).update(keys)
        self._coming.update(dict.fromkeys(keys, coming))
        while len(self._coming) > _MAX_PAGES and len(self._keys) > 1:
            self.forget(next(iter(self._keys)))

    def find(self, key: PageKey) -> Coming | None:
        """Who is to bring a page; None: nobody that is known."""
        return self._coming.get(key)

    def forget(self, user: UserId) -> None:
        """Forget what a user was to bring: it has ended."""
        for key in self._keys.pop(user, ()):
            coming = self._coming.get(key)
            if coming is not None and coming.user == user:
                del self._coming[key]
