"""Which objects L3 was seen to lack a moment ago."""

import math
from collections import OrderedDict

from raydix.ids import PageKey


class MissingObjects:
    """Owns: names that L3 lacked when it was last asked.

    A hint with a short life, for another engine may write them at any time; bounded in number, too.
    What is wrongly believed missing is asked for again after that life, what is wrongly believed to
    be there is found missing by its read.
    """

    def __init__(self, ttl_s: float, max_names: int) -> None:
        self._ttl_s = ttl_s
        self._max_names = max_names
        self._until_s: OrderedDict[tuple[int, PageKey], float] = OrderedDict()
        """When each name is to be forgotten, the earliest first."""
        self._news: list[tuple[int, PageKey]] = []

    def __len__(self) -> int:
        """The number of names that are kept."""
        return len(self._until_s)

    def note(self, group: int, key: PageKey, now_s: float) -> None:
        """Note that L3 has been asked and lacks this name."""
        name = group, key
        self._until_s.pop(name, None)
        self._until_s[name] = now_s + self._ttl_s
        self._news.append(name)
        while len(self._until_s) > self._max_names or self._first_until_s <= now_s:
            self._until_s.popitem(last=False)

    @property
    def _first_until_s(self) -> float:
        """When the first name is to be forgotten; infinite if there is none."""
        return next(iter(self._until_s.values()), math.inf)

    def has(self, group: int, key: PageKey, now_s: float) -> bool:
        """Whether it is too soon to ask for this name again."""
        until_s = self._until_s.get((group, key))
        return until_s is not None and now_s < until_s

    def forget(self, group: int, key: PageKey) -> None:
        """Forget a name that this engine has written."""
        self._until_s.pop((group, key), None)

    def forget_all(self) -> None:
        """Forget all names: another backend, or another life of it, is in use now."""
        self._until_s.clear()
        self._news.clear()

    def take_news(self) -> list[tuple[int, PageKey]]:
        """Take the names noted since the last call, each a KV group with a key."""
        news, self._news = self._news, []
        return news
