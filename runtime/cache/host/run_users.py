"""Which runs of pages each user of L2 has, and which users have ended of late."""

from collections import OrderedDict
from collections.abc import Collection

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.cache.host.page_run import PageRun
from raydix.runtime.cache.standing import Over, Standing

_MAX_ENDED = 4096


class EndedUsers:
    """Owns: the users that have ended of late: their pages may come back from readers."""

    def __init__(self) -> None:
        self._users: OrderedDict[UserId, None] = OrderedDict()

    def __contains__(self, user: UserId) -> bool:
        return user in self._users

    def note(self, user: UserId, standing: Standing) -> None:
        """Note what has become of a user."""
        self._users.pop(user, None)
        if isinstance(standing, Over):
            self._users[user] = None
            if len(self._users) > _MAX_ENDED:
                self._users.popitem(last=False)


class RunUsers:
    """Owns: the runs that each user has alone, and those that it used last."""

    def __init__(self) -> None:
        self._of_user: dict[UserId, dict[PageRun, None]] = {}
        """A set in order per user; none is empty."""

    def add(self, run: PageRun) -> None:
        """Add a new run."""
        for user in _users_of(run):
            self._of_user.setdefault(user, {})[run] = None

    def drop(self, run: PageRun) -> None:
        """Forget a run that has no page any more."""
        for user in _users_of(run):
            runs = self._of_user[user]
            del runs[run]
            if not runs:
                del self._of_user[user]

    def runs_of(self, user: UserId) -> Collection[PageRun]:
        """The runs of a user, in no order."""
        return self._of_user.get(user, {}).keys()

    def check(self, runs: set[PageRun]) -> None:
        """Raise AccountingError unless all these runs are with their users, and no others."""
        expected: dict[UserId, set[PageRun]] = {}
        for run in runs:
            for user in _users_of(run):
                expected.setdefault(user, set()).add(run)
        if {user: set(own) for user, own in self._of_user.items()} != expected:
            raise AccountingError(f"{len(self._of_user)} users have runs; expected {len(expected)}")


def _users_of(run: PageRun) -> set[UserId]:
    return {user for user in (run.user, run.reader) if user is not None} - {SEVERAL_USERS}
