"""Which pages that L2 lacks are to come, and for whom."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import PageKey, UserId

_MAX_PAGES = 1 << 18


@dataclass(frozen=True, slots=True)
class Coming:
    """Who is to bring pages, and since when it has had the chain in use that they go on."""

    user: UserId
    since_s: float
    kind: int = 0
    """What the user's request makes of them, for `reuse` alone."""
    turn: int = 0
    """The number of requests before it in its chain, for `reuse` alone."""


class ComingPages:
    """Owns: the pages that users' chains lacked when they were last looked up, until they end.

    A page is the last one's that lacked it. Of users that never end, as their requests were given
    up before they ran, no more is kept than of others: the first make way.
    """

    def __init__(self) -> None:
        self._keys: OrderedDict[UserId, set[PageKey]] = OrderedDict()
        """The pages that each user is to bring; each page has one user, and no set is empty."""
        self._coming: dict[PageKey, Coming] = {}

    def __len__(self) -> int:
        return len(self._coming)

    def note(self, keys: Sequence[PageKey], coming: Coming) -> None:
        """Note that a user is to bring these pages."""
        if not keys:
            return
        user = coming.user
        for key in keys:
            former = self._coming.get(key)
            if former is not None and former.user != user:
                self._take_from(former.user, key)
        # Behind all others, whenever it came first.
        self._keys[user] = self._keys.pop(user, set()).union(keys)
        self._coming.update(dict.fromkeys(keys, coming))
        while len(self._coming) > _MAX_PAGES and len(self._keys) > 1:
            self.forget(next(iter(self._keys)))

    def _take_from(self, user: UserId, key: PageKey) -> None:
        keys = self._keys[user]
        keys.remove(key)
        if not keys:
            del self._keys[user]

    def find(self, key: PageKey) -> Coming | None:
        """Who is to bring a page; None: nobody that is known."""
        return self._coming.get(key)

    def forget(self, user: UserId) -> None:
        """Forget what a user was to bring: it has ended."""
        for key in self._keys.pop(user, ()):
            del self._coming[key]

    def check(self) -> None:
        """Raise AccountingError unless each page is with the one user that is to bring it."""
        by_user = {key: user for user, keys in self._keys.items() for key in keys}
        if by_user != {key: coming.user for key, coming in self._coming.items()}:
            raise AccountingError(
                f"{len(self._keys)} users are to bring {len(by_user)} pages; {len(self._coming)} "
                "are to come"
            )
        if not all(self._keys.values()):
            raise AccountingError("a user is to bring no page")
