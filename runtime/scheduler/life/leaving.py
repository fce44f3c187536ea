"""A request that has got its first token here, and the rest of its output elsewhere."""

from dataclasses import dataclass, field

from raydix.ids import AskingId, ClientId, PageKey, RequestId
from raydix.runtime.scheduler.sources.mirror import Mirror


@dataclass(slots=True, kw_only=True)
class HandOver:
    """Owns: which of a request's pages L2 has yet to get before it goes on elsewhere."""

    request_id: RequestId
    client_id: ClientId
    asking: AskingId
    until_s: float
    """The time at which to wait for its pages takes longer than to compute them, or its deadline.
    """
    lacking: list[tuple[int, PageKey]] = field(default_factory=list)
    """Pages with their KV group, the next one last; each is there before any further one counts."""

    def is_complete(self, keys: Mirror) -> bool:
        """Whether L2 has said that it has all of its pages; others may ask for them then."""
        while self.lacking and keys.is_told(*self.lacking[-1]):
            self.lacking.pop()
        return not self.lacking
