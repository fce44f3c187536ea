"""Which of several engines of one model gets a request. Pure."""

import hashlib
from collections.abc import Sequence

from raydix.runtime.api.engine_line import EngineLine
from raydix.runtime.messages.client import PrefetchPrompt, SubmitRequest

_PREFIX_TOKENS = 256
"""The tokens at the beginning of a prompt that stand for what it shares with others."""


def by_session(lines: Sequence[EngineLine], message: SubmitRequest | PrefetchPrompt) -> EngineLine:
    """The engine whose turn the session's name draws, and the same as long as that is there.

    Without a session, what the prompt begins with stands for it. When an engine comes or goes, only
    what that one drew goes elsewhere (rendezvous hashing).
    """
    if len(lines) == 1:
        return lines[0]
    name = message.session_id if isinstance(message, SubmitRequest) else None
    salt = message.cache_salt or ""
    told = name.encode() if name is not None else message.token_ids[:_PREFIX_TOKENS].tobytes()
    return max(lines, key=lambda line: _draw(line.engine, salt, told))


def _draw(engine: str, salt: str, told: bytes) -> bytes:
    parts = (engine.encode(), salt.encode(), told)
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.blake2b(framed, digest_size=8).digest()
