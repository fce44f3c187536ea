"""Which sessions have pages kept: no more than the budget of their tenant, none for ever."""

from collections import OrderedDict
from dataclasses import dataclass, field

from raydix.errors import AccountingError
from raydix.ids import TenantId, UserId
from raydix.runtime.cache.deadlines import Deadlines
from raydix.runtime.messages.tenants import tenant_label


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """A session's pages that are kept."""

    tenant: TenantId
    user: UserId
    num_pages: int
    """The pages that the session had alone when it asked; it may have lost some since."""
    since_s: float
    until_s: float
    cache_salt: str | None = field(default=None, repr=False)
    session_id: str | None = None
    """The name of the user, with its `cache_salt`, as people know it."""

    def figures(self, now_s: float) -> dict[str, str | int | float | None]:
        """The keep in figures: who has it, why, how many pages, and for how many seconds more."""
        return {
            "tenant": tenant_label(self.cache_salt),
            "session_id": self.session_id,
            "reason": "keep",
            "pages": self.num_pages,
            "left_s": round(self.until_s - now_s, 1),
        }


class KeepBudget:
    """Owns: the keeps of a tier, by tenant, the oldest first."""

    def __init__(self, max_pages: int) -> None:
        """`max_pages`: the most that are kept for one tenant."""
        self._max_pages = max_pages
        self._keeps: dict[TenantId, OrderedDict[UserId, Keep]] = {}
        self._num_pages: dict[TenantId, int] = {}
        self._ends = Deadlines[tuple[TenantId, UserId]]()

    @property
    def num_pages(self) -> int:
        """The pages that are kept for all tenants, since `expire` was called last."""
        return sum(self._num_pages.values())

    def add(self, keep: Keep) -> list[Keep]:
        """Keep a session's pages; returns the keeps that are given up for it, the oldest first.

        It is among them if it is larger than the budget. Those that have run out give no room
        before `expire` was called.
        """
        self.forget(keep.tenant, keep.user)
        self._ends.set((keep.tenant, keep.user), keep.until_s)
        keeps = self._keeps.setdefault(keep.tenant, OrderedDict())
        keeps[keep.user] = keep
        self._num_pages[keep.tenant] = self._num_pages.get(keep.tenant, 0) + keep.num_pages

        given_up = []
        while self._num_pages.get(keep.tenant, 0) > self._max_pages:
            oldest = next(iter(keeps.values()))
            given_up.append(oldest)
            self.forget(keep.tenant, oldest.user)
        return given_up

    def expire(self, now_s: float) -> list[Keep]:
        """Forget keeps that have run out, of all tenants, and return them, the first first."""
        ended = []
        while (name := self._ends.take_due(now_s)) is not None:
            ended.append(self._take(*name))
        return ended

    def forget(self, tenant: TenantId, user: UserId) -> None:
        """Forget a session's keep, if it has any."""
        if user in self._keeps.get(tenant, ()):
            self._ends.forget((tenant, user))
            self._take(tenant, user)

    def _take(self, tenant: TenantId, user: UserId) -> Keep:
        keeps = self._keeps[tenant]
        keep = keeps.pop(user)
        self._num_pages[tenant] -= keep.num_pages
        if not keeps:
            del self._keeps[tenant], self._num_pages[tenant]
        return keep

    def keeps(self, now_s: float) -> list[Keep]:
        """The keeps that have not run out."""
        every = [keep for keeps in self._keeps.values() for keep in keeps.values()]
        return [keep for keep in every if keep.until_s > now_s]

    def check(self) -> None:
        """Raise AccountingError unless each tenant's keeps are counted, bounded, and end."""
        self._ends.check()
        if self._ends.names != {(each, user) for each in self._keeps for user in self._keeps[each]}:
            raise AccountingError(f"{len(self._ends)} keeps are to run out; others are there")
        for tenant, keeps in self._keeps.items():
            num_found = sum(keep.num_pages for keep in keeps.values())
            if num_found != self._num_pages[tenant] or num_found > self._max_pages:
                raise AccountingError(
                    f"tenant {tenant} has {num_found} pages kept; counted are "
                    f"{self._num_pages[tenant]}, allowed {self._max_pages}"
                )
