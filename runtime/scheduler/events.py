"""What the Scheduler's core is told (events) and what it asks its shell to do (effects)."""

from dataclasses import dataclass, field
from enum import Enum

from raydix.ids import ClientId, ConnectionId, GrammarKey, TenantId
from raydix.runtime.messages.arrays import Int32Array, Int64Array
from raydix.runtime.messages.client import FromClient, RequestDelta, RequestFailure
from raydix.runtime.messages.grammar import Grammar
from raydix.runtime.messages.host import FromHost, ToHost
from raydix.runtime.messages.kv_events import KvEvent
from raydix.runtime.messages.plan import FromRank, StepPlan
from raydix.runtime.messages.recording import RecordingPart
from raydix.runtime.messages.routing import EngineNews
from raydix.runtime.scheduler.expert_plans import ExpertPlan, PlanningWanted
from raydix.runtime.scheduler.phase import OrderOutcome, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMessage:
    """A client asks for something."""

    client_id: ClientId
    message: FromClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGone:
    """A client's link closed: its requests are nobody's."""

    client_id: ClientId


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAttached:
    """A GPU actor said hello: its L1 is empty, it holds no request and no copy is in flight.

    An earlier connection of the rank, if any, counts as lost. The same process may say hello again.
    """

    rank: int
    connection: ConnectionId
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessage:
    """A GPU actor reports; reports over an earlier connection are dropped."""

    rank: int
    connection: ConnectionId
    message: FromRank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLost:
    """A GPU actor's link closed. Until it exits or says hello anew it may still be copying."""

    rank: int
    connection: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAttached:
    """HostMemory said hello. An earlier connection counts as lost, even if its process lives."""

    connection: ConnectionId
    l2: str | None = None
    """What tells this L2 from all others; None: nobody is to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMessage:
    """HostMemory reports; reports over an earlier connection are dropped."""

    connection: ConnectionId
    message: FromHost


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost:
    """HostMemory's link closed."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAttached:
    """Somebody follows the caches from now on, over a link that was never used for that before."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerLost:
    """A follower's link closed."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsPlanned:
    """The result of a `PlanExperts`; stale if the step group's ranks were lost meanwhile."""

    step_group: int
    number: int
    plan: ExpertPlan | None
    """The plan that was made; None if planning failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCompiled:
    """The answer to a `CompileGrammar`. It names content, so it is never stale."""

    key: GrammarKey
    content: bytes | None = None
    """The compiled grammar; None: `failure` says why there is none."""
    vocabulary: bytes | None = None
    """What the content is read with: the same for all grammars of an engine."""
    failure: RequestFailure | None = None
    is_lasting: bool = False
    """Whether the failure is the grammar's own. On a busy machine any may take too long, or end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushL1:
    """Drop every page of L1 that no request holds: an `L1Flushed` tells when that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseRequests:
    """The engine is about to stop: requests go on, and new ones are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequests:
    """The engine stops now: what still runs has failed, and its client hears so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackUpL1:
    """The engine is about to stop: under `write_back`, copy to L2 what it lacks of L1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRecording:
    """Record requests from now on, under a name that was never used: a `RecordingTold` answers."""

    name: str
    salt: bytes = field(repr=False)
    """What hashes are made with: random, and told to nobody."""
    block_tokens: int | None
    """The tokens of a block of the trace; None: those of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRecording:
    """Tell what was recorded since this was last asked, by a `RecordingTold`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecording:
    """Record no more, and tell the rest: what still runs counts as it is."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FallAsleep:
    """Answer what has a lane, copy to L2 what it lacks of L1, then have memory given back."""

    with_weights: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksGaveBack:
    """The latest `GiveBack` is carried out: no process of a rank holds that memory any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """Have the ranks take their memory again, and go on with requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: `core.next_deadline_s()` said when this is due."""


EngineOrder = (
    FlushL1 | RefuseRequests | EndRequests | BackUpL1 | FallAsleep | RanksGaveBack | WakeUp
)
"""What the engine as a whole is told."""

Event = (
    ClientMessage
    | ClientGone
    | RankAttached
    | RankMessage
    | RankLost
    | HostAttached
    | HostMessage
    | HostLost
    | FollowerAttached
    | FollowerLost
    | ExpertsPlanned
    | GrammarCompiled
    | EngineOrder
    | BeginRecording
    | TakeRecording
    | EndRecording
    | Tick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlan:
    """Send a plan to every rank of a lane; each answers with one `StepResult`, in order."""

    lane: int
    connections: tuple[ConnectionId, ...]
    """The links of the lane's ranks, in order. Whoever attaches later does not get the plan."""
    plan: StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHost:
    """Send a message to HostMemory, over the connection that it is about."""

    connection: ConnectionId
    message: ToHost


@dataclass(frozen=True, slots=True, kw_only=True)
class SendClient:
    """Send news of one request to its client; the shell merges a turn's news into one frame."""

    client_id: ClientId
    delta: RequestDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTokens:
    """Send one more token of each of these requests to their client, by their askings."""

    client_id: ClientId
    askings: Int64Array
    token_ids: Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TellFollower:
    """Tell a follower what has become of the caches; the shell merges what it tells it at once."""

    connection: ConnectionId
    events: tuple[KvEvent, ...]
    is_whole: bool
    """Whether it has been told by then of all that there was when it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendNews:
    """Tell a client that routes what it has asked for: once for each time that it asks."""

    client_id: ClientId
    news: EngineNews


class KillCause(Enum):
    """Why a rank's process is to end."""

    LATE = "late"
    """The rank has owed an answer for too long."""
    GROUP_BROKEN = "group broken"
    """Another rank of its step group was lost: they step together or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRank:
    """End a rank's process, if that incarnation lives, and with it those that step with it."""

    rank: int
    incarnation: int
    cause: KillCause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanExperts:
    """Work out where a step group's experts should be, outside the Scheduler's loop.

    The answer is an `ExpertsPlanned` with the number that `wanted` has.
    """

    step_group: int
    wanted: PlanningWanted


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileGrammar:
    """Compile a grammar outside the Scheduler's loop. The answer is a `GrammarCompiled`."""

    key: GrammarKey
    grammar: Grammar
    tenant: TenantId
    """The tenant of the first request that asks for it: tenants take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGrammar:
    """Nobody waits for a grammar any more: it need not be compiled, nor answered."""

    key: GrammarKey


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Flushed:
    """Every `FlushL1` so far is done; they dropped so many pages together, of all KV groups."""

    num_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingTold:
    """The answer to an order about a recording, at once: a part of it, or why it is refused."""

    name: str
    part: RecordingPart | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Have all ranks give back the memory of their pages, and hang up; answered once they have.

    A rank that ends before the next `TakeAgain` is not started again until then.
    """

    with_weights: bool
    """Whether their weights go, too."""
    num_lost_pages: int
    """The pages of L1 that L2 has not got, and had no room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeAgain:
    """Have all ranks take again what they gave back, and say hello anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReached:
    """The engine is asleep, or is awake, whoever has asked for it."""

    phase: Phase
    num_orders: int
    """How many orders to sleep or to wake the core had taken by then: later ones may undo it."""
    outcomes: tuple[OrderOutcome, ...]
    """What has come of those of which nothing was told yet."""


Effect = (
    SendPlan
    | SendHost
    | SendClient
    | SendTokens
    | TellFollower
    | SendNews
    | KillRank
    | PlanExperts
    | CompileGrammar
    | DropGrammar
    | L1Flushed
    | RecordingTold
    | GiveBack
    | TakeAgain
    | PhaseReached
)
