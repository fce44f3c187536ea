"""JSON of errors, in OpenAI's shape and in Anthropic's."""

from typing import Literal

from raydix.runtime.server.wire.base import OrAbsent, WireAnswer


class ErrorDetails(WireAnswer):
    """What was wrong; `param` names the field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(WireAnswer):
    """The body of every answer from 400 on."""

    error: ErrorDetails


class ErrorCode(WireAnswer):
    """What kind of error it is, for programs."""

    error_code: str


class AnthropicErrorDetails(WireAnswer):
    """What was wrong."""

    type: str
    message: str
    details: OrAbsent[ErrorCode] = None


class AnthropicError(WireAnswer):
    """The body of every such answer to a request for messages."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetails
