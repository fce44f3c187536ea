"""The tenant of a cache salt: each is bounded by itself, however many salts it has."""

from hashlib import blake2b

from raydix.ids import TenantId

TENANT_END = "/"
"""The end of a tenant's name in a salt; what follows divides within the tenant."""
NO_TENANT = TenantId(0)
"""The one of all requests without a salt."""
_LABEL_DIGITS = 12


def tenant_of(cache_salt: str | None) -> TenantId:
    """The tenant that requests with a salt are of; those without one are of one, too, which is 0.

    A salt is a tenant's as far as its first slash; one without a slash is a tenant by itself.
    """
    if cache_salt is None:
        return NO_TENANT
    name, end, _ = cache_salt.partition(TENANT_END)
    return TenantId(salt_number(b"salted", b"", name + end))


def tenant_label(cache_salt: str | None) -> str | None:
    """What people are told of whose a salt is, which is never the salt itself.

    The tenant's name if the salt has one, else a number that stands for the salt; None: no salt.
    """
    if cache_salt is None:
        return None
    name, end, _ = cache_salt.partition(TENANT_END)
    return name if end else f"#{tenant_of(cache_salt):016x}"[: _LABEL_DIGITS + 1]


def salt_number(kind: bytes, prefix: bytes, name: str) -> int:
    """A number from 1 to 2**63 - 1 that no other name has, but by a chance of one in 10^18."""
    digest = blake2b(prefix + name.encode(), digest_size=8, person=kind).digest()
    return int.from_bytes(digest, "little") >> 1 or 1
