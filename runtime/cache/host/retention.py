"""What L2 does with hints: whose pages go first, and whose last."""

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.keep_budget import Keep, KeepBudget
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.standing import Idle, Kept, standing_after
from raydix.runtime.messages.retention import EndUse


class HostRetention:
    """Owns: which sessions have pages kept in L2."""

    def __init__(self, index: HostIndex, max_kept_pages: int) -> None:
        self._index = index
        self._budget = KeepBudget(max_kept_pages)

    def keeps(self, now_s: float) -> list[Keep]:
        """What is kept now."""
        return self._budget.keeps(now_s)

    def check(self, now_s: float) -> None:
        """Raise AccountingError unless the budgets hold, and nothing is kept beside them."""
        self._budget.check()
        users = {keep.user for keep in self._budget.keeps(now_s)}
        kept = self._index.kept_users()
        if not kept <= users:
            raise AccountingError(f"L2 keeps pages of {len(kept)} users; {len(users)} may")

    def end_use(self, message: EndUse, now_s: float) -> None:
        """A request has ended, or there is a hint of what comes next of its session."""
        user = message.user
        keys = split_keys(message.keys)
        for group in range(self._index.num_groups):
            self._index.end_use(group, keys, user)
        self._index.rest(user)
        if user == SEVERAL_USERS:
            return
        self._budget.forget(message.tenant, user)
        if message.retention is None:
            return

        standing = standing_after(message.retention, now_s)
        num_pages = self._index.retain(user, standing)
        if isinstance(standing, Kept) and num_pages:
            keep = Keep(
                tenant=message.tenant,
                user=user,
                num_pages=num_pages,
                since_s=now_s,
                until_s=standing.until_s,
                cache_salt=message.cache_salt,
                session_id=message.session_id,
            )
            for given_up in self._budget.add(keep):
                self._index.retain(given_up.user, Idle(given_up.since_s))
