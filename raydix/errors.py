"""Every error that a user can see. All derive from `RaydixError` and survive pickling."""


class RaydixError(Exception):
    """Base of all errors that Raydix raises on purpose."""


class ConfigError(RaydixError):
    """The configuration is unknown, contradictory or cannot be satisfied here."""


class CheckpointError(RaydixError):
    """A checkpoint folder is missing, incomplete, corrupt or of an unsupported kind."""


class BadRequest(RaydixError):
    """A request cannot be served as it was asked."""


class UnknownRequest(BadRequest):
    """The engine does not remember a request of this id."""


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


class Cancelled(RaydixError):
    """The request was aborted by its client."""


class EngineDead(RaydixError):
    """The engine, or the part of it that held the request, is gone."""


class ModelFailed(RaydixError):
    """The model computed no answer for a request: its logits are not finite."""


class AccountingError(RaydixError):
    """An owner's invariant does not hold; the message carries the figures."""
