"""Sessions whose clients say what comes next, rightly or wrongly, and whom that may concern."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from raydix.ids import PinId
from raydix.runtime.cache.page_key import root_key
from raydix.runtime.cache.standing import Kept
from raydix.runtime.messages.client import (
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    RetainSession,
    SubmitRequest,
    UnpinPrompt,
)
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler.request.users import session_user

if TYPE_CHECKING:
    from raydix.runtime.cache.host.core import HostMemoryCore
    from raydix.runtime.scheduler.core import SchedulerCore
    from raydix.runtime.scheduler.request.transfers import Promotion
    from tests.simulation.client_links import ClientLink
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node
    from tests.simulation.workload import Workload

_SESSIONS = (None, "s", "t", "u")
SILENT_SALT = "salt"
"""Nobody of this salt gives a hint."""


class HintOfOthers(AssertionError):
    """Pages of a salt whose clients never gave a hint were treated by one."""


class EarlyLoadInTheWay(AssertionError):
    """Pages were loaded for a session that is to go on, though requests waited."""


class MistoldPrefetch(AssertionError):
    """Whoever asks about a prefetch hears something else than its client."""


class EarlyLoadLaw:
    """Owns: which early loads there were before some events, and where requests waited."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._former: set[Promotion] = set()
        self._crowded: set[int] = set()

    def before_events(self) -> None:
        """Look at each lane."""
        self._former = set(self._early_loads())
        self._crowded = self._now_crowded()

    def after_hearing(self) -> None:
        """Look at each lane again: one of the events may have ended the waiting of requests."""
        self._crowded &= self._now_crowded()

    def after_decision(self) -> None:
        """Raise EarlyLoadInTheWay if a load began where requests had waited, or holds too much."""
        for each in self._early_loads():
            if each not in self._former and each.lane in self._crowded:
                raise EarlyLoadInTheWay(f"{each.num_pages} pages for {each.request_id}")
        for lane in self._core._lanes:
            own = [each for each in self._early_loads() if each.lane == lane.index]
            num_pages = sum(each.num_pages for each in own)
            if num_pages > self._core.settings.max_pages // 2:
                raise EarlyLoadInTheWay(f"{num_pages} pages for sessions to come")

    def _now_crowded(self) -> set[int]:
        lanes, has_unplaced = self._core._lanes, bool(self._core._requests.unplaced)
        return {lane.index for lane in lanes if has_unplaced or len(lane.waiting)}

    def _early_loads(self) -> list[Promotion]:
        promotions = [each for lane in self._core._lanes for each in lane.promotions.all()]
        return [each for each in promotions if each.returns is not None]


def with_retention(
    message: SubmitRequest,
    link: ClientLink,
    workload: Workload,
    cluster: Cluster,
    draw: random.Random,
) -> SubmitRequest:
    """A request of some session, perhaps with a hint; perhaps one follows while it runs or later.

    They are drawn at random: most are wrong.
    """
    if draw.random() >= workload.retention_fraction:
        return message
    message = replace(message, session_id=draw.choice(_SESSIONS))
    is_silent = message.cache_salt == SILENT_SALT
    if draw.random() < 0.5 and not is_silent:
        message = replace(message, retention=_draw_hint(draw))

    salt = draw.choice([None, "pepper"]) if is_silent else message.cache_salt
    hint = RetainSession(
        session_id=draw.choice(["s", "t", "u"]), cache_salt=salt, retention=_draw_hint(draw)
    )
    if draw.random() < 0.5:
        cluster.after(draw.uniform(0.0, 1.0), lambda: link.retain(hint))
    return message


def with_pin(
    message: PrefetchPrompt,
    link: ClientLink,
    workload: Workload,
    cluster: Cluster,
    draw: random.Random,
) -> PrefetchPrompt:
    """A prefetch that pins what it finds, or not; some pins are released after a while."""
    if draw.random() >= workload.retention_fraction:
        return message
    salt = draw.choice([None, SILENT_SALT, "pepper"])
    pin_s = draw.choice([0.05, 0.5, 2.0, 1e6])
    message = replace(message, cache_salt=salt, pin_s=pin_s)
    released = UnpinPrompt(
        pin_id=PinId(message.request_id), tenant=tenant_of(draw.choice([salt, "pepper"]))
    )
    if draw.random() < 0.5:
        cluster.after(draw.uniform(0.0, 1.0), lambda: link.retain(released))
    return message


def _draw_hint(draw: random.Random) -> Retention:
    kind = draw.choice(list(RetentionKind))
    seconds = 0.0 if kind is RetentionKind.END else draw.choice([0.0, 0.05, 1.0, 1e6])
    return Retention(kind=kind, seconds=seconds)


def check_hints(core: SchedulerCore) -> None:
    """Raise HintOfOthers if a hint has reached pages of the salt that gives none."""
    silent = root_key(cache_salt=SILENT_SALT)
    for lane in core._lanes:
        for node in lane.l1.tree.forest:
            if node.standing is None:
                continue
            root = node
            while root.parent is not None:
                root = root.parent
            if root.last_key == silent:
                raise HintOfOthers(f"{node.num_pages} pages of another tenant are {node.standing}")


def check_objects(node: Node) -> None:
    """Raise HintOfOthers if L3 keeps what L2's budget does not, or heeds who gave no hint."""
    if node.storage is None or node.host is None:
        return
    node.storage.order.check()
    now_s = node.world.now_s
    hinted = node.storage.order._objects.values()
    # Words take their time from process to process.
    kept = {
        each.user
        for each in hinted
        if isinstance(each.standing, Kept) and each.standing.until_s > now_s + 1.0
    }
    if not kept <= {keep.user for keep in node.host._retention._budget.keeps(now_s)}:
        raise HintOfOthers(f"L3 keeps objects of {len(kept)} users, some beside the budget")
    silent = {session_user(name, SILENT_SALT) for name in _SESSIONS if name is not None}
    if any(each.user in silent for each in hinted):
        raise HintOfOthers("L3 treats objects of another tenant by a hint")


def check_pins(host: HostMemoryCore) -> None:
    """Raise HintOfOthers if a pin counts for another tenant than the one that wanted it."""
    for tenant, pins in host._retention.pins._held.items():
        for held in pins.values():
            if tenant != tenant_of(held.pin.cache_salt):
                raise HintOfOthers(f"a pin of {held.pin.cache_salt} counts for another tenant")


def check_told(core: SchedulerCore, delta: RequestDelta) -> None:
    """Raise MistoldPrefetch if a prefetch ends, and who asks for it would hear something else."""
    if delta.finished is not FinishReason.PREFETCH:
        return
    # What was heard together with the end may have taken its name: then that is told of.
    if delta.request_id in core._requests.hints:
        return
    told = core.prefetch_state(delta.request_id)
    if told is None or told["tokens_by_source"] != delta.cached_tokens_by_source:
        raise MistoldPrefetch(f"{delta.request_id}: {told} instead of {delta}")
    if told["status"] != "completed" or not 0 <= told["num_found_pages"] <= told["num_pages"]:
        raise MistoldPrefetch(f"{delta.request_id}: {told}")
