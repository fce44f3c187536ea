"""The access that each route asks for."""

from raydix.runtime.server.keys import Access

_BY_PATH = {
    "/health": Access.OPEN,
    "/metrics": Access.MONITOR,
    "/ready": Access.ANY,
    "/openapi.json": Access.ANY,
    "/tokenize": Access.TENANT,
    "/detokenize": Access.TENANT,
}
_BY_START = {
    "/v1/models": Access.ANY,
    "/v1/": Access.TENANT,
    "/cache/": Access.TENANT,
    "/admin/": Access.ADMIN,
}


def access_of(path: str) -> Access:
    """What a path asks for; whoever has no key does not learn which paths are no routes."""
    if path in _BY_PATH:
        return _BY_PATH[path]
    for start, access in _BY_START.items():
        if path.startswith(start):
            return access
    return Access.ANY
