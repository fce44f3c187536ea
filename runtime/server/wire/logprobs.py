"""Logprobs as JSON can hold them."""

from raydix.runtime.api.outputs import Logprob

_LOWEST = -9999.0
"""What OpenAI's interface tells of a token that has no probability: JSON has no infinity."""


def finite(logprob: float) -> float:
    """A logprob, or the number that stands for minus infinity."""
    return max(logprob, _LOWEST)


def token_name(token_id: int, entry: Logprob) -> str:
    """A token's text; where the engine has no tokenizer, its id."""
    return f"token_id:{token_id}" if entry.decoded_token is None else entry.decoded_token
