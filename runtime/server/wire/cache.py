"""JSON of the routes below `/cache/`, whose names are LMCache's."""

from typing import Annotated, Literal

from pydantic import Field

from raydix.runtime.server.wire.base import Items, Text, Turns, WireAnswer
from raydix.runtime.server.wire.chat import TemplateFields
from raydix.runtime.server.wire.generation import Word
from raydix.runtime.server.wire.messages import Message

DEFAULT_KEEP_S = 3600.0


class CachedPrompt(TemplateFields):
    """Exactly one of text, token ids and a conversation, which would begin a request."""

    model: str | None = None
    prompt: Text | None = None
    token_ids: Items[int] | None = None
    messages: Turns[Message] | None = None
    cache_salt: Word | None = None


class PrefetchRequest(CachedPrompt):
    """A prompt that is to be in L2."""


class PinRequest(CachedPrompt):
    """A prompt that is to stay in L2."""

    keep_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = DEFAULT_KEEP_S
    """Seconds; no more than cache.retention.max_keep_s count."""


class PrefetchBegun(WireAnswer):
    """A prefetch that has been taken in."""

    request_id: str
    """The name by which it is asked about."""
    status: Literal["submitted"] = "submitted"


class PrefetchShown(WireAnswer):
    """How far a prefetch has come."""

    request_id: str
    status: Literal["pending", "completed", "cancelled"]
    found_keys: int
    """The leading pages of the prompt that are in L1 or L2."""
    total_keys: int
    """The full pages of the prompt."""
    tokens_by_source: dict[str, int] | None
    """Where the prompt's tokens were, once it is completed."""


class Pinned(WireAnswer):
    """What came of a pin."""

    tokens_by_source: dict[str, int]
    """Where the prompt's tokens were."""
    pin_id: str | None
    """The name by which it is released; null: nothing of the prompt is there, or there is no room.
    """
    pinned_tokens: int
    """The leading tokens of the prompt that are held."""


class PinShown(WireAnswer):
    """One pin of the caller's tenant."""

    pin_id: str
    pinned_tokens: int
    bytes: int
    left_s: float


class PinsShown(WireAnswer):
    """All of them, the oldest first."""

    pins: list[PinShown]
