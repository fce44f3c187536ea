"""JSON of `/tokenize` and `/detokenize`."""

from raydix.runtime.server.wire.base import Items, Text, Turns, WireAnswer, WireRequest
from raydix.runtime.server.wire.messages import Message
from raydix.runtime.server.wire.tools import Tool


class TokenizeRequest(WireRequest):
    """Either text or a conversation."""

    model: str | None = None
    prompt: Text | None = None
    messages: Turns[Message] | None = None
    tools: Items[Tool] | None = None
    """The tools of a chat with these messages."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class Tokens(WireAnswer):
    """Token ids as a request with this text would have them."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(WireRequest):
    """The token ids whose text is asked for."""

    model: str | None = None
    tokens: Items[int]


class Detokenized(WireAnswer):
    """Their text, special tokens among it."""

    prompt: str
