"""A prefetch hint: a prompt that is expected to be asked for."""

from dataclasses import dataclass, field

from raydix.ids import SEVERAL_USERS, AskingId, ClientId, RequestId, UserId
from raydix.runtime.messages.retention import EndUse, Pin
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.prefetch import PrefetchState


@dataclass(frozen=True, slots=True, kw_only=True)
class HintClient:
    """The client that gave a hint, and is to be told what became of it."""

    client_id: ClientId
    asking: AskingId


@dataclass(slots=True, kw_only=True)
class PrefetchHint:
    """A chain that is looked up once: for a client, or for a session that is to go on."""

    request_id: RequestId
    chain: Chain
    client: HintClient | None = None
    """None: it is for a session."""
    rests: EndUse | None = None
    """What L2 is told of the session once its pages are there; None: it is for a client."""
    pin: Pin | None = None
    """How the client wants the pages pinned, if it does."""
    prefetch: PrefetchState = field(default_factory=PrefetchState)

    @property
    def user(self) -> UserId:
        """The user whose pages are looked up."""
        return SEVERAL_USERS if self.rests is None else self.rests.user
