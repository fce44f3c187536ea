"""Errors as HTTP answers."""

import contextlib
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from raydix.errors import (
    BadParameter,
    BadRequest,
    CalledOff,
    Cancelled,
    CheckpointError,
    ConfigError,
    DeadlineExceeded,
    EngineAsleep,
    EngineDead,
    Overloaded,
    PromptTooLong,
    RaydixError,
    UnknownRequest,
)
from raydix.runtime.config.nearest import nearest
from raydix.runtime.config.values import shortened
from raydix.runtime.server.connection import ClientGone
from raydix.runtime.server.error_shapes import shaped
from raydix.runtime.server.wire.errors import ErrorDetails

_RETRY_DEAD_S = 5.0
"""The time to wait before asking a dead engine again: about what its parts take to come back."""
_MAX_NAMED = 5
_MAX_VALUE_CHARS = 40
_TYPE_NAMES = frozenset({"str", "int", "float", "bool"})
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """What an answer says of an error."""

    status: int
    details: ErrorDetails
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, path: str) -> bytes:
        """The JSON, in ASCII: a message may quote what is no Unicode.

        path: the one that was asked for, whose interface has its own shape of errors.
        """
        answer = shaped(self.status, self.details, path)
        return json.dumps(answer.model_dump(mode="python")).encode()

    def response(self, path: str) -> Response:
        """The whole answer to a request for this path."""
        body = self.body(path)
        return Response(body, self.status, self.headers, media_type="application/json")


class RequestRefused(Exception):
    """An answer that the server gives without asking the engine."""

    def __init__(self, failure: HttpFailure) -> None:
        super().__init__(failure)
        self.failure = failure


def failure(status: int, message: str, kind: str, **more: Any) -> HttpFailure:
    """An error; `more`: its `param`, `code` and `headers`."""
    headers = more.pop("headers", {})
    return HttpFailure(status, ErrorDetails(message=message, type=kind, **more), headers)


def failure_of(error: RaydixError) -> HttpFailure:
    """The answer to a client about an error of Raydix."""
    text = str(error)
    match error:
        case PromptTooLong():
            code = "context_length_exceeded"
            return failure(400, text, "invalid_request_error", code=code)
        case UnknownRequest():
            return failure(404, text, "invalid_request_error", code="not_found")
        case BadParameter():
            return failure(400, text, "invalid_request_error", param=error.parameter)
        case BadRequest() | ConfigError() | CheckpointError():
            return failure(400, text, "invalid_request_error")
        case CalledOff():
            return failure(409, text, "invalid_request_error", code="called_off")
        case Overloaded():
            headers = _retry_after(error.retry_after_s)
            return failure(429, text, "rate_limit_error", code="overloaded", headers=headers)
        case EngineAsleep():
            headers = _retry_after(error.retry_after_s)
            return failure(503, text, "server_error", code="engine_asleep", headers=headers)
        case DeadlineExceeded():
            return failure(408, text, "timeout_error", code="deadline_exceeded")
        case EngineDead() | Cancelled():
            headers = _retry_after(_RETRY_DEAD_S)
            return failure(503, text, "server_error", code="engine_unavailable", headers=headers)
        case _:
            return failure(500, text, "server_error")


@contextlib.contextmanager
def refused_as(param: str, index: int | None = None) -> Iterator[None]:
    """Name the field of the body that what is refused within has come from.

    index: its place in a list of them, which the message names, too: not every client shows fields.
    """
    try:
        yield
    except BadRequest as error:
        told = failure_of(error)
        changed = {"param": param}
        if index is not None:
            place = f"{param}.{index}"
            changed = {"param": place, "message": f"{place}: {told.details.message}"}
        details = told.details.model_copy(update=changed)
        raise RequestRefused(replace(told, details=details)) from error


def failure_of_validation(
    errors: Sequence[Mapping[str, Any]], fields: Iterable[str]
) -> HttpFailure:
    """Names the fields that are missing, then those that are not supported, or else what is wrong.

    fields: those of the body, of which an unknown one may be a misspelling. What is missing comes
    first, as the unknown one is often that in a wrong place.
    """
    unknown = [each for each in errors if _is_unsupported(each)]
    missing = _problems([each for each in errors if each["type"] == "missing"])
    if not unknown:
        wrong = _problems(errors)
        param = next(iter(wrong), None)
        return failure(400, _listed(wrong), "invalid_request_error", param=param)

    named = ", ".join(_named(each, fields) for each in unknown[:_MAX_NAMED])
    text = f"Not supported: {named}. Leave out what is named."
    if missing:
        text = f"{_listed(missing)}. {text}"
        return failure(400, text, "invalid_request_error", param=next(iter(missing)))
    param = _path(unknown[0])
    return failure(400, text, "invalid_request_error", param=param, code="unsupported_parameter")


def _listed(problems: Mapping[str, str]) -> str:
    """Some problems, each behind its place."""
    return "; ".join(f"{path}: {text}" for path, text in problems.items())


def _is_unsupported(error: Mapping[str, Any]) -> bool:
    """The field is none of ours, or it asks for more than nothing."""
    is_not_empty = error["type"].endswith("too_long") and error["ctx"]["max_length"] == 0
    return is_not_empty or error["type"] == "extra_forbidden"


def _named(error: Mapping[str, Any], fields: Iterable[str]) -> str:
    """The unsupported field, and of one that is unknown the field that was probably meant."""
    path = _path(error)
    is_unknown = error["type"] == "extra_forbidden" and len(error["loc"]) == 1
    near = nearest(path, fields) if is_unknown else None
    return f"{path!r} (did you mean {near!r}?)" if near else repr(path)


def _problems(errors: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The first few problems, by place. A union brings an error for each type of a value."""
    by_path: dict[str, list[Mapping[str, Any]]] = {}
    for each in errors:
        by_path.setdefault(_path(each), []).append(each)

    around = {place for path in by_path for place in _places_around(path)}
    problems: dict[str, str] = {}
    for path, own in by_path.items():
        if len(problems) == _MAX_NAMED:
            break
        # Of a type that the value does have, something else is wrong, here or within it.
        others = [each for each in own if not each["type"].endswith("_type")]
        if others or path not in around:
            told = others or own
            problems[path] = _either([_message(each) for each in told]) + _given(told[0])
    return problems


def _places_around(path: str) -> Iterator[str]:
    """`messages` and `messages.0` of `messages.0.content`."""
    names = path.split(".")
    return (".".join(names[:number]) for number in range(1, len(names)))


def _message(error: Mapping[str, Any]) -> str:
    match error["type"]:
        case "model_type":
            # Pydantic's own names a class of ours.
            return "Input should be an object"
        case "too_short" | "too_long" if error["ctx"]["field_type"] == "Value":
            # A text that was looked at before it was measured.
            return str(error["msg"]).replace(" item", " character")
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


def _either(messages: Sequence[str]) -> str:
    """`Input should be a valid string or a valid list`."""
    first, *more = dict.fromkeys(messages)
    return " or ".join([first, *(each.removeprefix("Input should be ") for each in more)])


def _given(error: Mapping[str, Any]) -> str:
    """` (it is '5')`: the value that is wrong, where the message does not tell it.

    Of an object its type is told, and of a list that it is one: they may hold anything.
    """
    if "input" not in error or not error["msg"].startswith("Input should be"):
        return ""
    match error["input"]:
        case {"type": str(kind)} if error["type"].startswith("unknown_"):
            return f" (it is of type {shortened(kind, _MAX_VALUE_CHARS)})"
        case dict():
            return " (it is an object)"
        case list():
            return " (it is a list)"
        case value:
            return f" (it is {shortened(value, _MAX_VALUE_CHARS)})"


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error in the shape of its route."""

    @app.exception_handler(RaydixError)
    async def on_raydix_error(request: Request, error: RaydixError) -> Response:
        return failure_of(error).response(request.url.path)

    @app.exception_handler(RequestRefused)
    async def on_refused(request: Request, error: RequestRefused) -> Response:
        return error.failure.response(request.url.path)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        text = f"{error.detail}: {request.method} {request.url.path}."
        headers = dict(error.headers or {})
        refused = failure(error.status_code, text, "invalid_request_error", headers=headers)
        return refused.response(request.url.path)

    @app.exception_handler(ClientDisconnect)
    @app.exception_handler(ClientGone)
    async def on_client_gone(_: Request, __: ClientGone | ClientDisconnect) -> Response:
        # Nobody reads it; logs and metrics show the status that nginx uses for this.
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        told = failure(500, "The server failed; its log says why.", "server_error")
        return told.response(request.url.path)


def _retry_after(seconds: float) -> dict[str, str]:
    # The first is HTTP's, in whole seconds; OpenAI's clients prefer the second.
    return {
        "Retry-After": str(max(1, math.ceil(seconds))),
        "Retry-After-Ms": str(max(1, math.ceil(1000 * seconds))),
    }


def _path(error: Mapping[str, Any]) -> str:
    """`messages.0.content`: the place in the body, without the types that a union tried."""
    names = [
        str(each)
        for each in error["loc"]
        if isinstance(each, int) or (each.isidentifier() and each not in _TYPE_NAMES)
    ]
    return ".".join(names) or "body"
