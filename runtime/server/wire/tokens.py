"""JSON of `/tokenize` and `/detokenize`."""

from raydix.runtime.server.wire.base import Items, Text, Turns, WireAnswer, WireRequest
from raydix.runtime.server.wire.chat import TemplateFields
from raydix.runtime.server.wire.messages import Message


class TokenizeRequest(TemplateFields):
    """Either text or a conversation, with what a chat tells the template."""

    model: str | None = None
    prompt: Text | None = None
    messages: Turns[Message] | None = None


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
