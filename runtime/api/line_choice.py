"""Which of several engines of one model gets a request, where nothing is known of them."""

import hashlib
from collections.abc import Sequence

from raydix.ids import AskingId, RequestId
from raydix.runtime.api.engine_line import EngineLine
from raydix.runtime.messages.client import PrefetchPrompt, SubmitRequest
from raydix.runtime.messages.routing import EngineNews
from raydix.runtime.routing.events import Route

_PREFIX_TOKENS = 256
"""The tokens at the beginning of a prompt that stand for what it shares with others."""


def by_session(lines: Sequence[EngineLine], message: SubmitRequest | PrefetchPrompt) -> EngineLine:
    """The engine whose turn the session's name draws, and the same as long as that is there. Pure.

    Without a session, what the prompt begins with stands for it. When an engine comes or goes, only
    what that one drew goes elsewhere (rendezvous hashing).
    """
    if len(lines) == 1:
        return lines[0]
    name = message.session_id if isinstance(message, SubmitRequest) else None
    salt = message.cache_salt or ""
    told = name.encode() if name is not None else message.token_ids[:_PREFIX_TOKENS].tobytes()
    return max(lines, key=lambda line: _draw(line.engine, salt, told))


class SessionLines:
    """Chooses by session, and follows no engine: there is but one, or nobody wants to know more."""

    def opened(self, line: EngineLine) -> None:
        """There is nothing to know of it."""

    def lost(self, line: EngineLine) -> None:
        """Nothing was known of it."""

    def hear(self, line: EngineLine, news: EngineNews) -> None:
        """Nobody has asked for it."""

    def choose(
        self, lines: Sequence[EngineLine], message: SubmitRequest | PrefetchPrompt
    ) -> tuple[EngineLine, SubmitRequest | PrefetchPrompt]:
        """The engine that `by_session` names."""
        return by_session(lines, message), message

    def joins(
        self, line: EngineLine, message: SubmitRequest | PrefetchPrompt
    ) -> SubmitRequest | PrefetchPrompt:
        """Nothing is counted."""
        return message

    def answered(self, asking: AskingId, request_id: RequestId, *, is_last: bool) -> None:
        """Nothing was predicted."""

    def ended(self, asking: AskingId, request_id: RequestId) -> None:
        """Nothing was foretold."""

    def route_of(self, asking: AskingId) -> Route | None:
        """Nothing was reckoned."""
        return None

    def predict_s(self, lines: Sequence[EngineLine], message: SubmitRequest) -> float:
        """Nothing is known."""
        return 0.0


def _draw(engine: str, salt: str, told: bytes) -> bytes:
    parts = (engine.encode(), salt.encode(), told)
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.blake2b(framed, digest_size=8).digest()
