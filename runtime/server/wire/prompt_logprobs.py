"""Logprobs of a prompt as vLLM's interface tells them, and a prompt that is echoed."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.errors import BadParameter
from raydix.runtime.api.outputs import Logprob, PromptEntry
from raydix.runtime.server.wire.base import WireAnswer
from raydix.runtime.server.wire.logprobs import finite


class PromptTokenLogprob(WireAnswer):
    """One token at one place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptTokenLogprob] | None]
"""One entry per token of the prompt, by token id, which JSON has as text; null for the first."""


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt of a completion, which is put before its output."""

    text: str
    token_ids: list[int]
    token_texts: list[str]
    """The text of each of its tokens; with logprobs `text` is these."""
    logprobs: Sequence[PromptEntry] | None


def told_prompt_logprobs(entries: Sequence[PromptEntry] | None) -> PromptLogprobs | None:
    """What the engine tells of a prompt, as JSON can hold it."""
    if entries is None:
        return None
    return [None if entry is None else _told(entry) for entry in entries]


def _told(entry: dict[int, Logprob]) -> dict[str, PromptTokenLogprob]:
    return {
        str(token_id): PromptTokenLogprob(
            logprob=finite(each.logprob), rank=each.rank, decoded_token=each.decoded_token
        )
        for token_id, each in entry.items()
    }


def check_not_streamed(name: str, what: str = "", *, is_asked: bool, is_streamed: bool) -> None:
    """Raise BadParameter where a stream is asked for what streams do not tell.

    what: more words than the parameter's name.
    """
    if is_asked and is_streamed:
        problem = f"{what} is not available in a stream. Leave out stream, or {name}."
        raise BadParameter(name, problem.lstrip())
