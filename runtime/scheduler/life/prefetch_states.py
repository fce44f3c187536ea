"""How far clients' prefetches have come, and what has become of those that ended last."""

from collections import OrderedDict
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from raydix.ids import RequestId, TenantId

_NUM_ENDED = 1024
"""The most prefetches that are remembered once they have ended."""


class PrefetchStatus(StrEnum):
    """Where a prefetch stands."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """Its client wanted no more of it, or is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchProgress:
    """What can be told of one prefetch."""

    status: PrefetchStatus
    tenant_id: TenantId
    num_pages: int
    """The full pages of the prompt."""
    num_found_pages: int
    """The leading ones that are in L1 or L2 by now, or were when it ended."""
    tokens_by_source: dict[str, int] | None = None
    """Where the prompt's tokens were, once it is completed."""

    def told(self) -> dict[str, Any]:
        """The same as plain values."""
        return {**asdict(self), "status": self.status.value}


class PrefetchStates:
    """Owns: what has become of the prefetches that ended last.

    If there are too many, the tenant that has most of them gives up its oldest.
    """

    def __init__(self, num_ended: int = _NUM_ENDED) -> None:
        self._num_ended = num_ended
        self._ended: dict[RequestId, PrefetchProgress] = {}
        self._of_tenant: dict[TenantId, OrderedDict[RequestId, None]] = {}

    def find(self, name: RequestId) -> PrefetchProgress | None:
        """What has become of a prefetch; None if it is not remembered."""
        return self._ended.get(name)

    def add(self, name: RequestId, progress: PrefetchProgress) -> None:
        """Remember a prefetch that has ended; of two of one name the later one counts."""
        self._forget(name)
        self._ended[name] = progress
        self._of_tenant.setdefault(progress.tenant_id, OrderedDict())[name] = None
        if len(self._ended) > self._num_ended:
            most = max(self._of_tenant.values(), key=len)
            self._forget(next(iter(most)))

    def _forget(self, name: RequestId) -> None:
        progress = self._ended.pop(name, None)
        if progress is None:
            return
        own = self._of_tenant[progress.tenant_id]
        del own[name]
        if not own:
            del self._of_tenant[progress.tenant_id]
