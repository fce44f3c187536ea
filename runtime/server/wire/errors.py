"""JSON of errors, in OpenAI's shape."""

from raydix.runtime.server.wire.base import WireAnswer


class ErrorDetails(WireAnswer):
    """What was wrong; `param` names the field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(WireAnswer):
    """The body of every answer from 400 on."""

    error: ErrorDetails
