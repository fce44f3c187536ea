"""Which request is meant by an id, which may be that of an HTTP answer."""

from collections.abc import Awaitable, Callable
from typing import Any

from raydix.errors import UnknownRequest

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")
"""What the ids of HTTP answers have before the request's id."""


async def explained(
    ask: Callable[[str], Awaitable[dict[str, Any] | None]], name: str
) -> dict[str, Any]:
    """The explanation of the request that is meant, which `ask` looks up by its id.

    Raises UnknownRequest if the engine knows none of those that can be meant.
    """
    for request_id in _meant(name):
        explanation = await ask(request_id)
        if explanation is not None:
            return explanation
    raise UnknownRequest(name)


def _meant(name: str) -> list[str]:
    """The ids that can be meant, the likeliest first: of an answer's choices the first one."""
    for prefix in ANSWER_PREFIXES:
        if name.startswith(prefix):
            request_id = name.removeprefix(prefix)
            return [name, request_id, f"{request_id}-0"]
    return [name]
