"""The user that each request's pages belong to: its session, or the request by itself."""

from raydix.ids import UserId
from raydix.runtime.messages.tenants import salt_number
from raydix.runtime.scheduler.request.request import RequestState


def session_user(session_id: str, cache_salt: str | None) -> UserId:
    """The user that a session is: never one of another salt, whatever its sessions are called."""
    salt = 0 if cache_salt is None else salt_number(b"salted", b"", cache_salt)
    return UserId(salt_number(b"session", salt.to_bytes(8, "little"), session_id))


def user_of(request: RequestState) -> UserId:
    """The user that a request is of: another one for each request without a session."""
    submit = request.submit
    if submit.session_id is not None:
        return session_user(submit.session_id, submit.cache_salt)
    serial = request.serial.to_bytes(8, "little")
    return UserId(salt_number(b"request", serial, request.request_id))
