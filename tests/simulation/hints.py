"""Sessions whose clients say what comes next, rightly or wrongly, and whom that may concern."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from raydix.ids import PinId
from raydix.runtime.cache.page_key import root_key
from raydix.runtime.cache.standing import Kept
from raydix.runtime.messages.client import (
    PrefetchPrompt,
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
    from tests.simulation.client_links import ClientLink
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node
    from tests.simulation.workload import Workload

_SESSIONS = (None, "s", "t", "u")
SILENT_SALT = "salt"
"""Nobody of this salt gives a hint."""


class HintOfOthers(AssertionError):
    """Pages of a salt whose clients never gave a hint were treated by one."""


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
