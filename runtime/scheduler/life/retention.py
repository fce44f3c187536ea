"""What becomes of a session's pages between its requests, and after them, in L1 and in L2."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raydix.errors import AccountingError
from raydix.ids import UserId
from raydix.runtime.cache.keep_budget import Keep, KeepBudget
from raydix.runtime.cache.radix_node import RadixNode
from raydix.runtime.cache.standing import Away, Idle, Kept, Over, standing_after
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.retention import EndUse, Retention
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler.life.refusals import is_sound_hint
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.returns import SessionReturns
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Promotion
from raydix.runtime.scheduler.request.users import session_user, user_of
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource

_MAX_PENDING = 65_536


class SessionRetention:
    """Owns: hints that wait for the end of a session's requests, and what L1 keeps by hints.

    A hint that comes while requests of the session live concerns what they leave behind: it counts
    from the end of the last of them. It is given for whom it names alone, in the tenant's own name.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        source: KvSource,
        returns: SessionReturns,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._lanes = lanes
        self._source = source
        self._returns = returns
        self._now_s = 0.0
        self._num_hints = 0
        self._pending: dict[UserId, Retention] = {}
        """Hints for sessions that have requests."""
        max_pages = int(settings.max_kept_fraction * max(settings.num_pages, default=0))
        self._keeps = [KeepBudget(max_pages) for _ in lanes]

    def advance(self, now_s: float) -> None:
        """Note that it is so late."""
        self._now_s = now_s
        # Without a hint nothing is expected at any time.
        if self._num_hints:
            self._advance_lanes()
            self._returns.look_up_due(now_s)

    def load_due(self) -> None:
        """Bring sessions to L1 that are about to go on, as the engine is awake."""
        if self._num_hints:
            self._returns.load_due(self.num_kept, self._now_s)

    def num_kept(self, lane: int) -> int:
        """The pages that a lane keeps by hints."""
        return self._keeps[lane].num_pages

    def _advance_lanes(self) -> None:
        for lane, budget in zip(self._lanes, self._keeps, strict=True):
            retention = lane.l1.tree.retention
            retention.advance(self._now_s)
            # Where what was used last goes first, no page goes earlier by itself.
            for ended in budget.expire(self._now_s):
                retention.retain(ended.user, Idle(ended.until_s))

    def hint(self, message: RetainSession) -> None:
        """Take a hint that comes without a request; of one that names no time nothing follows."""
        if not is_sound_hint(message.retention):
            return
        user = session_user(message.session_id, message.cache_salt)
        self._num_hints += 1
        retention = self._bounded(message.retention)
        if self._requests.has_session(message.session_id, message.cache_salt):
            if len(self._pending) < _MAX_PENDING:
                self._pending[user] = retention
            return
        self._end(
            EndUse(
                user=user,
                tenant=tenant_of(message.cache_salt),
                retention=retention,
                cache_salt=message.cache_salt,
                session_id=message.session_id,
            )
        )

    def end_use(self, lane: Lane, request: RequestState, node: RadixNode, num_pages: int) -> None:
        """Note that a request has ended, which had so many cached pages, the last in this node."""
        submit = request.submit
        user, tenant = user_of(request), tenant_of(submit.cache_salt)
        retention = None if submit.retention is None else self._bounded(submit.retention)
        if submit.session_id is not None:
            self._returns.remember(user, request.chain, submit.priority)
        if submit.session_id is None and retention is None:
            # No hint can follow it.
            lane.l1.tree.retention.claim(node, user)
        else:
            lane.l1.tree.retention.end_use(node, user)
        self._num_hints += retention is not None
        if self._requests.is_last_of_session(request):
            retention = self._pending.pop(user, retention)
        elif retention is not None:
            self._pending[user], retention = retention, None

        start = min(request.start.num_pages, num_pages)
        self._end(
            EndUse(
                user=user,
                tenant=tenant,
                keys=request.chain.keys(num_pages, start),
                retention=retention,
                cache_salt=submit.cache_salt,
                session_id=submit.session_id,
            )
        )

    def end_unserved(self, request: RequestState) -> None:
        """Note that a request has ended which held nothing: hints that waited for it count now."""
        submit = request.submit
        if submit.session_id is None or not self._requests.is_last_of_session(request):
            return
        user = user_of(request)
        if (retention := self._pending.pop(user, None)) is not None:
            self._end(
                EndUse(
                    user=user,
                    tenant=tenant_of(submit.cache_salt),
                    retention=retention,
                    cache_salt=submit.cache_salt,
                    session_id=submit.session_id,
                )
            )

    def end_return(self, lane: Lane, promotion: Promotion, rests: EndUse) -> None:
        """Let a session rest on whose pages have come to L1 ahead of its next request."""
        node = promotion.lock.node
        assert node is not None, "what was loaded is locked"
        lane.promotions.end(promotion.request_id)
        retention = lane.l1.tree.retention
        retention.end_use(node, rests.user)
        assert rests.retention is not None, "a session that is expected has said so"
        retention.retain(rests.user, standing_after(rests.retention, self._now_s))

    def _bounded(self, retention: Retention) -> Retention:
        return replace(retention, seconds=min(retention.seconds, self._settings.max_keep_s))

    def _end(self, end: EndUse) -> None:
        """Let L1 and L2 know that a user rests, and what comes next of it."""
        # Where nobody has given a hint there is none to forget.
        if self._num_hints:
            for lane, budget in zip(self._lanes, self._keeps, strict=True):
                # On other lanes, too, where the session was before.
                lane.l1.tree.retention.end_hint(end.user)
                budget.forget(end.tenant, end.user)
            self._returns.stop_expecting(end.user)
            if end.retention is not None:
                self._retain(end, end.retention)
        if self._source.view.is_usable and self._settings.prefix_caching:
            self._source.tell(end)

    def _retain(self, end: EndUse, retention: Retention) -> None:
        # The first hint finds the lanes where nobody has told them the time.
        self._advance_lanes()
        standing = standing_after(retention, self._now_s)
        match standing:
            case Away(until_s):
                self._returns.expect(end, until_s, self._now_s)
            case Over():
                self._returns.forget(end.user)
            case _:
                pass
        for lane, budget in zip(self._lanes, self._keeps, strict=True):
            num_pages = lane.l1.tree.retention.retain(end.user, standing)
            if not isinstance(standing, Kept) or not num_pages:
                continue
            keep = Keep(
                tenant=end.tenant,
                user=end.user,
                num_pages=num_pages,
                since_s=self._now_s,
                until_s=standing.until_s,
                cache_salt=end.cache_salt,
                session_id=end.session_id,
            )
            for given_up in budget.add(keep):
                lane.l1.tree.retention.retain(given_up.user, Idle(given_up.since_s))

    def figures(self) -> dict[str, Any]:
        """The hints so far, and what L1 keeps: whose, how many pages, and how many seconds more."""
        keeps = [keep for budget in self._keeps for keep in budget.keeps(self._now_s)]
        return {
            "retention_hints": self._num_hints,
            "session_returns": self._returns.num_begun,
            "session_early_loads": self._returns.num_loaded,
            "l1_kept": [keep.figures(self._now_s) for keep in keeps],
        }

    def check(self) -> None:
        """Raise AccountingError unless budgets hold, and nothing is kept beside them."""
        self._returns.check()
        for lane, budget in zip(self._lanes, self._keeps, strict=True):
            budget.check()
            users = {keep.user for keep in budget.keeps(self._now_s)}
            kept = lane.l1.tree.retention.kept_users(self._now_s)
            if not kept <= users:
                raise AccountingError(
                    f"lane {lane.index}: L1 keeps pages of {len(kept)} users; {len(users)} may"
                )
