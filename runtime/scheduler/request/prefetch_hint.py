"""A prefetch hint: a prompt that a client expects to ask for."""

from dataclasses import dataclass, field

from raydix.ids import AskingId, ClientId, RequestId
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.prefetch import PrefetchState


@dataclass(slots=True, kw_only=True)
class PrefetchHint:
    """A chain that is looked up once, and who is to be told what became of it."""

    asking: AskingId
    request_id: RequestId
    client_id: ClientId
    chain: Chain
    prefetch: PrefetchState = field(default_factory=PrefetchState)
