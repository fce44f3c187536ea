"""What a client says of when the pages of its session are used again: hints, never orders.

A hint decides nothing but which pages go first. One that is wrong or late costs time; it is never
the reason for a wrong hit, nor for a request that fails.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from typing import Any

from raydix.ids import PinId, TenantId, UserId


class RetentionKind(StrEnum):
    """What is known of a session's pages."""

    END = "end"
    """No further request of the session comes: they go first, but for those of others, too."""
    KEEP = "keep"
    """They go last for so long, within the budget of their tenant."""
    RESUME = "resume"
    """A tool runs: the session's next request comes in so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A hint. A later one, or a request of the session, replaces it."""

    kind: RetentionKind
    seconds: float = 0.0
    """A duration from when the hint is heard, or from the end of the request that brings it; 0 for
    END.
    """


_NAMES = {
    RetentionKind.END: "end",
    RetentionKind.KEEP: "keep_s",
    RetentionKind.RESUME: "resume_in_s",
}
RETENTION_FORMS = "{'end': True}, {'keep_s': SECONDS} and {'resume_in_s': SECONDS}"
"""What a hint may look like where people and files give one."""


def hint_of(retention: Retention) -> dict[str, Any]:
    """A hint as people and files give it, in one of `RETENTION_FORMS`."""
    is_end = retention.kind is RetentionKind.END
    return {_NAMES[retention.kind]: True if is_end else retention.seconds}


def retention_from(hint: object) -> Retention | None:
    """What `hint_of` was given; None for what is no hint."""
    if not isinstance(hint, Mapping) or len(hint) != 1:
        return None
    [(name, value)] = hint.items()
    kind = next((kind for kind, known in _NAMES.items() if known == name), None)
    if kind is RetentionKind.END and value is True:
        return Retention(kind=kind)
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if kind in (None, RetentionKind.END) or not is_number or not 0 <= value <= sys.float_info.max:
        return None
    return Retention(kind=kind, seconds=float(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndUse:
    """A request has ended, or there is a hint of what comes next of its session. Never stale.

    What its user has in use counts as used now. A hint concerns the pages that no other user has
    used; without one they age like all others.
    """

    user: UserId
    tenant: TenantId
    keys: bytes = b""
    """The pages that the request computed, the last of its chain: they are the user's, too."""
    retention: Retention | None = None
    cache_salt: str | None = field(default=None, repr=False)
    session_id: str | None = None
    """The name of the user, with its `cache_salt`, as people know it: for figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A wish to hold a prompt's pages in L2, whatever is used meanwhile; a later one of the same
    tenant and id replaces it.
    """

    pin_id: PinId
    tenant: TenantId
    seconds: float
    """A duration from when the pages are there."""
    cache_salt: str | None = field(default=None, repr=False)
    """The name of the tenant, as people know it: for figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePin:
    """A tenant's pin is wanted no more. Never stale: one that there is not is released already."""

    pin_id: PinId
    tenant: TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainObjects:
    """What is known of when a session uses these objects again: a hint, which nothing answers.

    It holds until the object is read, written anew or deleted, the session says something else, or
    the connection is lost. Objects that are not there are passed over. Never stale.
    """

    user: UserId
    keys: bytes = b""
    """The objects of one group that go first are named first."""
    group: int = 0
    retention: Retention | None = None
    """None: what was said of any objects of this user's holds no longer; none is named."""
