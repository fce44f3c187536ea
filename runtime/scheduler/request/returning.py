"""A session that rests and is to go on."""

from dataclasses import dataclass

from raydix.runtime.messages.retention import EndUse
from raydix.runtime.scheduler.request.chain import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """What its next request begins with, as far as is known, and when that comes."""

    chain: Chain
    priority: int
    """The priority of its last request: lower is more important."""
    rests: EndUse
    until_s: float
