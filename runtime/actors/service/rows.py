"""What the table of a service says of an engine, from the figures that the engine tells. Pure."""

from collections.abc import Mapping
from typing import Any

from raydix.runtime.messages.host import ObjectStatus

TIERS = ("l1", "l2", "peer", "l3")
"""Where tokens of prompts are found; `peer` is the L2 of another node."""
_TOKENS_PREFIX = "prompt_tokens_"
_PULLS_PREFIX = "peer_reads_"


def load_row(stats: Mapping[str, Any] | None) -> dict[str, Any]:
    """The load of an engine and what its caches have done, as plain values.

    stats: the figures by actor, None where an actor has told none; None: the engine has not
    answered. Whatever is not known is None.
    """
    scheduler: Mapping[str, Any] = (stats or {}).get("scheduler") or {}
    host: Mapping[str, Any] = (stats or {}).get("host") or {}
    restarts = None if stats is None else sum(stats.get("restarts", {}).values())
    return {
        "phase": scheduler.get("phase"),
        "prompt_wait_s": scheduler.get("prompt_wait_s"),
        "waiting": scheduler.get("num_requests_waiting"),
        "loading": scheduler.get("num_requests_loading"),
        "running": scheduler.get("num_requests_running"),
        "prompt_tokens_by_tier": _tokens_by_tier(scheduler) if scheduler else None,
        "peers": host.get("peers"),
        "pulled_pages": _pulls(host, ObjectStatus.OK) if host else None,
        "failed_pulls": _pulls(host, *_FAILED) if host else None,
        "restarts": restarts,
    }


_FAILED = tuple(
    status
    for status in ObjectStatus
    # What the other node has dropped meanwhile, or nobody waits for any longer, is no failure.
    if status not in (ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.CANCELLED)
)


def _tokens_by_tier(scheduler: Mapping[str, Any]) -> dict[str, int]:
    """Tokens of prompts by the tier that had them, and those that were computed."""
    tokens = dict.fromkeys((*TIERS, "computed"), 0)
    for name, number in scheduler.items():
        source = name.removeprefix(_TOKENS_PREFIX).partition(":")[0]
        if name.startswith(_TOKENS_PREFIX) and source in tokens:
            tokens[source] += number
    return tokens


def _pulls(host: Mapping[str, Any], *statuses: ObjectStatus) -> int:
    return sum(host.get(f"{_PULLS_PREFIX}{status.label}", 0) for status in statuses)
