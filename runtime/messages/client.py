"""What travels between a client and the Scheduler.

A request id is the caller's name for a request, and may be used again once that request has ended.
What is asked and what is answered is told apart by the asking: a number that the client uses once
on its link. When a link closes, all that went over it is stale: the Scheduler ends what the client
asked, and nothing is answered elsewhere. So it does once the client's next link is there, which may
be before it notices that the former one is lost.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from raydix.ids import AskingId, PinId, RequestId, TenantId
from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.grammar import Grammar
from raydix.runtime.messages.plan import DeviceSampling, PromptLogprobs, TokenLogprobs
from raydix.runtime.messages.retention import Retention
from raydix.runtime.messages.routing import FollowEngine


class FinishReason(StrEnum):
    """Why a request ended well."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    PREFETCH = "prefetch"
    """A `PrefetchPrompt` is done: what L3 has of the prompt is in L2, as far as it fits."""
    HANDED_OVER = "handed_over"
    """A request that goes on elsewhere has got its first token: L2 has what was computed for it, or
    will not have it soon. Callers never see this.
    """


class FailureKind(StrEnum):
    """Why a request ended badly; each maps to the error type of that name in `raydix.errors`, but
    for `SHUTTING_DOWN`.
    """

    BAD_REQUEST = "BadRequest"
    PROMPT_TOO_LONG = "PromptTooLong"
    OVERLOADED = "Overloaded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    ENGINE_DEAD = "EngineDead"
    SHUTTING_DOWN = "ShuttingDown"
    """The engine is about to stop: another one may go on with the request. Callers hear
    `EngineDead` if there is none.
    """
    MODEL_FAILED = "ModelFailed"
    ASLEEP = "EngineAsleep"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """A new request.

    Stop strings stay with the client, which sends `StopRequest` when it finds one.

    Never stale: it begins an asking. Refused if another request of this id lives, whichever client
    asked for that one.
    """

    asking: AskingId
    request_id: RequestId
    token_ids: Int32Array
    sampling: DeviceSampling
    max_tokens: int | None
    """The most tokens to generate, known ones among them; None: the rest of the context."""
    known_output: Int32Array | None = None
    """The output as far as an earlier asking has brought it, here or at another engine, that was
    cut off: it goes on behind these tokens as that one would have, and waits however many wait.
    int32, perhaps empty; None: there was no earlier asking.
    """
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the output (EOS among them unless ignored), not before `sampling.min_tokens`."""
    priority: int = 0
    cache_salt: str | None = field(default=None, repr=False)
    session_id: str | None = None
    routing_key: str | None = None
    deadline_s: float | None = None
    grammar: Grammar | None = None
    """What the output has to be; its end is the end of the output."""
    sample_of: RequestId | None = None
    """A request of this client with the same prompt. While that one lives, this one goes where it
    is, so that the prompt is computed once.
    """
    retention: Retention | None = None
    """A hint of what comes next of the session, or of the prompt, once the request has ended: not
    where it is handed over.
    """
    goes_on_elsewhere: bool = False
    """Whether another engine gives what follows the first new token, by another asking: this one
    ends as `HANDED_OVER`, unless that token is the last.
    """
    expected_as: AskingId | None = None
    """The asking of the `ExpectRequest` that foretold this one."""

    @property
    def earlier_output(self) -> Int32Array:
        """`known_output`, empty where there was no earlier asking."""
        return empty() if self.known_output is None else self.known_output


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectRequest:
    """Another engine begins a request that is to go on here: have room in L1, and its pages there.

    Nothing is answered. `SubmitRequest.expected_as`, `AbortRequest` or the time ends it. Never
    stale: it begins an asking.
    """

    asking: AskingId
    token_ids: Int32Array
    within_s: float
    """The time in which the request is to come; it is expected no longer."""
    cache_salt: str | None = field(default=None, repr=False)
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainSession:
    """A hint of what comes next of a session, which is not answered.

    It concerns what the session's requests have left, or will have left once all that live have
    ended. Never stale.
    """

    session_id: str
    retention: Retention
    cache_salt: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchPrompt:
    """A hint that requests with this prompt may follow: bring to L2 what L3 has of it.

    Answered by a delta that says nothing, once it is taken in, and a last one: PREFETCH, with the
    prompt's tokens by source as a request would have found them. `AbortRequest` ends it. Never
    stale, as `SubmitRequest`.
    """

    asking: AskingId
    request_id: RequestId
    token_ids: Int32Array
    cache_salt: str | None = field(default=None, repr=False)
    pin_s: float | None = None
    """Pin what is there then in L2 for so many seconds, under the request id; None: do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinPrompt:
    """A pin is wanted no more, which is not answered. Never stale, as `ReleasePin`."""

    pin_id: PinId
    tenant: TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequest:
    """End a request or prefetch now; its last delta says `abort`.

    Stale once that asking has ended, whatever has its request id by then: it is dropped.
    """

    asking: AskingId
    request_id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """The client found a stop string: end the request with reason `stop`.

    Stale once that asking has ended, whatever has its request id by then: it is dropped.
    """

    asking: AskingId
    request_id: RequestId


FromClient = (
    SubmitRequest
    | ExpectRequest
    | PrefetchPrompt
    | UnpinPrompt
    | RetainSession
    | AbortRequest
    | StopRequest
    | FollowEngine
)
"""What a client says to the Scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailure:
    """A typed failure."""

    kind: FailureKind
    message: str
    retry_after_s: float = 0.0
    parameter: str | None = None
    """The caller's name of what is wrong, if it is one thing; `message` goes on from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDelta:
    """What is new of one request. The last delta has `finished` or `failure`, never both.

    Stale once nobody listens to that asking any more: the client drops it, though its request id
    may live on in a later asking. With the last one the client knows that the Scheduler is done
    with the asking.
    """

    asking: AskingId
    request_id: RequestId
    token_ids: Int32Array = field(default_factory=empty)
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    """Runs of prompt tokens, each behind the one before; all come before the first token."""
    cached_tokens_by_source: dict[str, int] | None = None
    """Prompt tokens by source, which sum to the prompt.

    On the first delta with tokens, or the last one.
    """
    num_pinned_tokens: int | None = None
    """The leading tokens of a `PrefetchPrompt` that its pin holds, on the last delta."""
    queued_s: float | None = None
    """Arrival to first admission; on the same delta."""
    finished: FinishReason | None = None
    failure: RequestFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFrame:
    """News of a client's requests: all of one scheduler turn, or a part of it where that is much.

    First come single tokens, in columns: entry i is one more token of an asking, which may have
    several. Then come deltas, at most one of an asking, whose tokens follow. Each is stale by
    itself.
    """

    askings: tuple[AskingId, ...] = ()
    token_ids: Int32Array = field(default_factory=empty)
    deltas: tuple[RequestDelta, ...] = ()
