"""The user that each request's pages belong to: its session, or the request by itself."""

from hashlib import blake2b

from raydix.ids import TenantId, UserId
from raydix.runtime.scheduler.request.request import RequestState


def session_user(session_id: str, cache_salt: str | None) -> UserId:
    """The user that a session is: never one of another salt, whatever its sessions are called."""
    return UserId(_number(b"session", tenant_of(cache_salt).to_bytes(8, "little"), session_id))


def tenant_of(cache_salt: str | None) -> TenantId:
    """The tenant that requests with a salt are of; those without one are of one, too."""
    return TenantId(_number(b"salted", b"", cache_salt) if cache_salt is not None else 0)


def user_of(request: RequestState) -> UserId:
    """The user that a request is of: another one for each request without a session."""
    submit = request.submit
    if submit.session_id is not None:
        return session_user(submit.session_id, submit.cache_salt)
    return UserId(_number(b"request", request.serial.to_bytes(8, "little"), request.request_id))


def _number(kind: bytes, prefix: bytes, name: str) -> int:
    """A number from 1 to 2**63 - 1 that no other name has, but by a chance of one in 10^18."""
    digest = blake2b(prefix + name.encode(), digest_size=8, person=kind).digest()
    return int.from_bytes(digest, "little") >> 1 or 1
