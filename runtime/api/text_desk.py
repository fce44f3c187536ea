"""Text to token ids and back, beside an event loop: on threads of its own, in fair turns."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, assert_never

from raydix.errors import BadRequest
from raydix.runtime.api.fair_turns import FairTurns, in_one_step
from raydix.runtime.api.prompts import (
    ChatPrompt,
    Prompt,
    TextPrompt,
    TokenIds,
    TokenPrompt,
    longer_than,
    read_prompt,
)
from raydix.runtime.api.tokenizer import Tokenizer

_MAX_THREADS = 4


class TextDesk:
    """The tokenizer of one connection, for all who ask by it.

    Owns: its threads. What is longer than the model's context is refused once that is certain,
    mostly before it is tokenised. Methods raise BadRequest where there is no tokenizer. `tenant`:
    whose turn it is; None: the process's own.
    """

    def __init__(self, tokenizer: Tokenizer | None, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._turns = FairTurns(min(_MAX_THREADS, os.cpu_count() or 1) + 1, "raydix-text")

    async def token_ids_of(
        self, prompt: Prompt, tenant: str | None = None
    ) -> tuple[str | None, TokenIds]:
        """A prompt's text, if it is one, and its token ids, not yet checked against the model.

        Raises BadRequest and PromptTooLong.
        """
        match shape := read_prompt(prompt):
            case TokenPrompt():
                return None, shape.token_ids
            case TextPrompt():
                return shape.text, await self.encode(shape.text, tenant)
            case ChatPrompt():
                return None, await self.encode_chat(
                    shape.messages, shape.template_arguments, tenant
                )
            case _:
                assert_never(shape)

    async def encode(self, text: str, tenant: str | None = None) -> list[int]:
        """Token ids of a prompt. Raises BadRequest and PromptTooLong."""
        if self.tokenizer is None:
            raise BadRequest(
                "The prompt is text, but the checkpoint has no tokenizer that this process can "
                "read. Pass token ids, or put the tokenizer's files into the checkpoint folder on "
                "this host."
            )
        return await self._turns.run(tenant, self.tokenizer.encoding(text, self._max_tokens))

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_arguments: Mapping[str, Any],
        tenant: str | None = None,
    ) -> list[int]:
        """Token ids of a conversation; see `Tokenizer.encode_chat`. Raises PromptTooLong, too."""
        tokenizer = self._required("chat")
        # A template takes long over many messages, of which each has a token at least.
        if isinstance(messages, Sequence) and len(messages) > self._max_tokens:
            raise longer_than(self._max_tokens)
        steps = tokenizer.encoding_chat(messages, template_arguments, self._max_tokens)
        return await self._turns.run(tenant, steps)

    async def decode(self, token_ids: Sequence[int], tenant: str | None = None) -> str:
        """Text of a user's ids, special tokens among it. Raises BadRequest."""
        tokenizer = self._required("text")
        work = in_one_step(partial(tokenizer.decode_given, token_ids))
        return await self._turns.run(tenant, work)

    async def prompt_texts(
        self,
        token_ids: Sequence[int],
        prompt: str | None,
        *,
        is_whole: bool,
        tenant: str | None = None,
    ) -> list[str]:
        """The text of each token of a prompt; see `Tokenizer.prompt_texts`."""
        tokenizer = self._required("text")
        work = in_one_step(partial(tokenizer.prompt_texts, token_ids, prompt, is_whole=is_whole))
        return await self._turns.run(tenant, work)

    def close(self) -> None:
        """End the threads; nobody may wait for them any more."""
        self._turns.close()

    def _required(self, purpose: str) -> Tokenizer:
        if self.tokenizer is None:
            raise BadRequest(
                f"The checkpoint has no tokenizer that this process can read; {purpose} needs one. "
                "Put the tokenizer's files into the checkpoint folder on this host; without them "
                "prompts and answers are token ids."
            )
        return self.tokenizer
