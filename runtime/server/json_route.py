"""Routes that take JSON: the body is read within its bound, and checked against its model, once.

FastAPI describes the routes and finds them. What it does between that and a handler of its own
takes longer than all the rest of a request.
"""

from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.types import ASGIApp, Receive, Scope, Send

from raydix.runtime.server.errors import RequestRefused, failure, failure_of_validation

MAX_BODY_BYTES = 8 << 20
"""The most bytes of a body: enough for a prompt of a million token ids. All streams wait while a
body is parsed, and 28 MiB took seconds.
"""


class JsonRoute(APIRoute):
    """A route whose handler takes a `body`, or a route without one.

    A handler of a body has no other parameters than `body` and `request`.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take the arguments of FastAPI's own route."""
        super().__init__(path, endpoint, **options)
        parameters = signature(endpoint).parameters
        if "body" in parameters:
            self.app = _application(
                endpoint, parameters["body"].annotation, takes_request="request" in parameters
            )


def _application(
    endpoint: Callable[..., Awaitable[Response]], model: type[BaseModel], *, takes_request: bool
) -> ASGIApp:
    """The route itself. Whatever it raises the application's handlers answer."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = _validated(model, await _read(request))
        answering = endpoint(body, request) if takes_request else endpoint(body)
        answer = await answering
        await answer(scope, receive, send)

    return application


async def _read(request: Request) -> bytes:
    """The whole body. Raises RequestRefused if it is no JSON by its header, or too long."""
    kind = request.headers.get("content-type", "")
    name = kind.partition(";")[0].strip().lower()
    if not (name == "application/json" or (name[:12] == "application/" and name[-5:] == "+json")):
        text = f"The header Content-Type is {kind!r}; expected 'application/json'."
        if not kind:
            text = "The header Content-Type is missing; expected 'application/json'."
        raise RequestRefused(failure(400, text, "invalid_request_error"))

    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
    return bytes(body)


def _too_large() -> RequestRefused:
    text = f"The body is too large; expected at most {MAX_BODY_BYTES} bytes."
    return RequestRefused(failure(413, text, "invalid_request_error"))


def _validated(model: type[BaseModel], body: bytes) -> BaseModel:
    try:
        return model.model_validate(from_json(body))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestRefused(failure_of_validation(errors, model.model_fields)) from error
    except ValueError as error:
        text = f"The body is no JSON: {error}."
        raise RequestRefused(failure(400, text, "invalid_request_error", param="body")) from error
