"""What nodes tell in tests of routing."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from raydix.ids import NodeId, RequestId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.messages.kv_events import KvNews, PagesRemoved, PagesStored, ShortKeys, Tier
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.routing import NodeReport
from raydix.runtime.routing.events import Asking, NodeFound, NodeNews, NodeReported

PAGE_SIZE = 16
TOKEN_S = 0.001
LOAD_PAGE_S = 0.002


def key(page: int) -> bytes:
    """The key of a page, which stands for all that comes before it."""
    return hashlib.sha256(page.to_bytes(8, "little")).digest()


def short_keys(pages: Iterable[int]) -> ShortKeys:
    """The short keys of some pages."""
    return ShortKeys(b"".join(key(page)[:MIRROR_KEY_BYTES] for page in pages))


def found(node: int, name: str | None = None) -> NodeFound:
    """A node that has come."""
    return NodeFound(node=NodeId(node), name=name or f"n{node}")


def stored(node: int, pages: Iterable[int], tier: Tier = Tier.L1, lane: int | None = 0) -> NodeNews:
    """Pages that have come to a node."""
    event = PagesStored(tier=tier, lane=lane, group=0, keys=short_keys(pages))
    return NodeNews(node=NodeId(node), news=KvNews(events=(event,), is_whole=True))


def removed(
    node: int, pages: Iterable[int], tier: Tier = Tier.L1, lane: int | None = 0
) -> NodeNews:
    """Pages that have left a node."""
    event = PagesRemoved(tier=tier, lane=lane, group=0, keys=short_keys(pages))
    return NodeNews(node=NodeId(node), news=KvNews(events=(event,), is_whole=True))


def reported(node: int, **changes: object) -> NodeReported:
    """An idle node's report, or one with changes."""
    idle = NodeReport(
        num_seen=0,
        busy_s=0.0,
        num_requests=0,
        arrivals_per_s=0.1,
        busy_fraction=0.1,
        num_ingresses=1,
        prefill=Line(0.0, TOKEN_S),
        load=Line(0.0, LOAD_PAGE_S),
        pull=None,
        page_size=PAGE_SIZE,
        interval_s=0.5,
    )
    report = replace(idle, **changes)  # type: ignore[arg-type]
    return NodeReported(node=NodeId(node), report=report)


def asking(name: str, pages: Iterable[int], session_id: str | None = None) -> Asking:
    """A request whose prompt is these pages and half a page."""
    keys = [key(page) for page in pages]
    return Asking(
        request_id=RequestId(name),
        keys={PAGE_SIZE: b"".join(keys)},
        num_tokens=len(keys) * PAGE_SIZE + PAGE_SIZE // 2,
        session_id=session_id,
    )


def prefills(node: int, **changes: object) -> NodeReported:
    """The report of a node that computes prompts for others, whose L2 is that of `decodes`."""
    return reported(node, **{"role": EngineRole.PREFILL, "l2": "one", **changes})


def decodes(node: int, num_decoding: int, **changes: object) -> NodeReported:
    """The report of a node that goes on with what others have begun."""
    more = {"role": EngineRole.DECODE, "l2": "one", "num_decoding": num_decoding, **changes}
    return reported(node, **more)
