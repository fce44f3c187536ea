"""Logprobs as JSON can hold them."""

from raydix.runtime.api.outputs import Logprob

_LOWEST = -9999.0
"""What OpenAI's interface tells of a token that has no probability: JSON has no infinity."""


def finite(logprob: float) -> float:
    """A logprob, or the number that stands for minus infinity."""
    return max(logprob, _LOWEST)


def token_name(token_id: int, entry: Logprob) -> str:
    """A token's text; where the engine has no tokenizer, its id."""
    return token_of_id(token_id) if entry.decoded_token is None else entry.decoded_token


def token_of_id(token_id: int) -> str:
    """The name of a token that has no text, or not one of its own."""
    return f"token_id:{token_id}"
