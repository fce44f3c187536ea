"""Every error that a user can see. All derive from `RaydixError` and survive pickling."""

from collections.abc import Mapping, Sequence

_MAX_NAMED = 3
"""Failed prompts that the message of `BatchFailed` tells of."""


class RaydixError(Exception):
    """Base of all errors that Raydix raises on purpose."""


class ConfigError(RaydixError):
    """The configuration is unknown, contradictory or cannot be satisfied here."""


class CheckpointError(RaydixError):
    """A checkpoint folder is missing, incomplete, corrupt or of an unsupported kind."""


class BadRequest(RaydixError):
    """A request cannot be served as it was asked."""


class BadParameter(BadRequest):
    """One parameter of a request is wrong: `parameter` names it, `problem` says the rest."""

    def __init__(self, parameter: str, problem: str) -> None:
        super().__init__(parameter, problem)
        self.parameter = parameter
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.parameter} {self.problem}"


class UnknownRequest(BadRequest):
    """The engine does not remember a request of this id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return (
            f"Request {self.request_id!r} is not among the last 1,024 of this engine. Give the "
            "request_id of an output, or the id of an HTTP answer; another choice than its first "
            "one has -1, -2 and so on behind that."
        )


class PromptTooLong(BadRequest):
    """The prompt leaves no room for one generated token."""


class Overloaded(RaydixError):
    """The waiting queue is full; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])


class DeadlineExceeded(RaydixError):
    """A request's `deadline_s` passed; `partial` holds the output so far, if any."""

    def __init__(self, message: str, partial: object = None) -> None:
        super().__init__(message, partial)
        self.partial = partial

    def __str__(self) -> str:
        return str(self.args[0])


class BatchFailed(RaydixError):
    """Some prompts of a batch have failed; all others are answered.

    `errors` has the error of each by its position; `outputs` one output per prompt (of prefetches
    its tokens by source), None where there is none.
    """

    def __init__(self, errors: Mapping[int, RaydixError], outputs: Sequence[object] = ()) -> None:
        super().__init__(errors, outputs)
        self.errors = dict(errors)
        self.outputs = list(outputs)

    def __str__(self) -> str:
        named = [
            f"prompt {index}: {type(error).__name__}: {str(error).removesuffix('.')}"
            for index, error in sorted(self.errors.items())
        ]
        more = f"; and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        others = "" if len(named) == len(self.outputs) else " The others are answered."
        return (
            f"{len(named)} of {len(self.outputs)} prompts failed, which are counted from 0: "
            f"{'; '.join(named[:_MAX_NAMED])}{more}.{others}"
        )


class Cancelled(RaydixError):
    """The request was aborted by its client."""


class EngineDead(RaydixError):
    """The engine, or the part of it that held the request, is gone."""


class EngineStopped(EngineDead):
    """The engine is gone, as somebody has stopped it."""


class EngineAsleep(RaydixError):
    """The engine sleeps, and was not woken in time; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])


class CalledOff(RaydixError):
    """Somebody else has called off what was asked for, before it was done."""


class ModelFailed(RaydixError):
    """The model computed no answer for a request: its logits are not finite."""


class AccountingError(RaydixError):
    """An owner's invariant does not hold; the message carries the figures."""
