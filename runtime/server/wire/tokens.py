"""JSON of `/tokenize` and `/detokenize`."""

from typing import Annotated

from pydantic import Field

from raydix.runtime.server.wire.base import Items, Text, WireAnswer, WireRequest
from raydix.runtime.server.wire.messages import Message


class TokenizeRequest(WireRequest):
    """Either text or a conversation."""

    model: str | None = None
    prompt: Text | None = None
    messages: Annotated[Items[Message], Field(min_length=1)] | None = None


class Tokens(WireAnswer):
    """Token ids as a request with this text would have them."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(WireRequest):
    """Token ids."""

    model: str | None = None
    tokens: Items[int]


class Detokenized(WireAnswer):
    """Their text, special tokens among it."""

    prompt: str
