"""JSON of the routes of sessions."""

from raydix.runtime.server.wire.base import WireRequest
from raydix.runtime.server.wire.generation import Word
from raydix.runtime.server.wire.retention import KvHints, RetentionHint


class SessionHint(WireRequest):
    """A hint of what comes next of a session."""

    session_id: Word
    cache_salt: Word | None = None
    """The salt of the session's requests, if they have one."""
    retention: RetentionHint | None = None
    kv_hints: KvHints | None = None
    """The same in the envelope of vLLM and SGLang; one of both is needed."""
