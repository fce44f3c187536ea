"""Lets a request in by its key, before any of its body is read."""

from typing import assert_never

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from raydix.runtime.server.errors import HttpFailure, failure
from raydix.runtime.server.keys import Caller, KeyJudge, Verdict, judge_without_keys
from raydix.runtime.server.route_access import access_of

_SCHEME = "bearer "


class KeyCheck:
    """ASGI middleware: puts the caller into the request's state, or answers 401 or 403."""

    def __init__(self, app: ASGIApp, keys: KeyJudge | None) -> None:
        """Keep `keys`; None, for a server on loopback, opens all routes but the admin's."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI asks of an application.

        There are no websockets: their handshake is refused by the app.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        verdict = self._judge(scope)
        if isinstance(verdict, Verdict):
            await _refusal(verdict).response(scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = verdict
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> Caller | Verdict:
        access = access_of(scope["path"])
        if self._keys is None:
            return judge_without_keys(access)
        return self._keys.judge(access, _key_of(Headers(scope=scope)))


def _key_of(headers: Headers) -> str | None:
    """The key, in either of the headers in which clients send one."""
    value = headers.get("authorization", "")
    if value.lower().startswith(_SCHEME):
        return value[len(_SCHEME) :].strip()
    return headers.get("x-api-key")


def _refusal(verdict: Verdict) -> HttpFailure:
    challenge = {"WWW-Authenticate": "Bearer"}
    kind, code = "authentication_error", "invalid_api_key"
    match verdict:
        case Verdict.NO_KEY:
            text = (
                "This route needs one of the server's keys. Send it in the "
                "header Authorization: Bearer KEY, or X-Api-Key: KEY."
            )
            return failure(401, text, kind, code=code, headers=challenge)
        case Verdict.SHUT:
            text = (
                "This route is shut, as the server has no keys. Start it with --keys FILE, and "
                "send that file's admin key in the header Authorization: Bearer KEY."
            )
            return failure(401, text, kind, code=code, headers=challenge)
        case Verdict.UNKNOWN_KEY:
            return failure(401, "Nobody has this key.", kind, code=code, headers=challenge)
        case Verdict.WRONG_ROLE:
            text = (
                "This key is for other routes: tenants, monitor and admin have keys of their own."
            )
            return failure(403, text, "permission_error", code="wrong_key")
        case _:
            assert_never(verdict)
