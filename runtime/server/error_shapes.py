"""The shape of an error, by the interface whose route was asked."""

from raydix.runtime.server.wire.errors import (
    AnthropicError,
    AnthropicErrorDetails,
    ErrorAnswer,
    ErrorCode,
    ErrorDetails,
)

ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def shaped(status: int, details: ErrorDetails, path: str) -> ErrorAnswer | AnthropicError:
    """The body of an error of the route with this path: Anthropic's or OpenAI's."""
    if not (path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")):
        return ErrorAnswer(error=details)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error")
    # There is no field of its own for the place.
    is_named = details.param is None or details.param in details.message
    text = details.message if is_named else f"{details.param}: {details.message}"
    told = None if details.code is None else ErrorCode(error_code=details.code)
    return AnthropicError(error=AnthropicErrorDetails(type=kind, message=text, details=told))
