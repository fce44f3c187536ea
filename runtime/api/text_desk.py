"""Text to token ids and back, beside an event loop: on threads, so that the loop goes on."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.api.tokenizer import Tokenizer


class TextDesk:
    """The tokenizer of one connection. Its methods raise BadRequest where there is none."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer

    async def encode(self, text: str) -> list[int]:
        """Token ids of a prompt. Raises BadRequest."""
        if self.tokenizer is None:
            raise BadRequest(
                "The prompt is text, but the checkpoint has no tokenizer that this process can "
                "read. Pass token ids, or put the tokenizer's files into the checkpoint folder on "
                "this host."
            )
        return await asyncio.to_thread(self.tokenizer.encode, text)

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any
    ) -> list[int]:
        """Token ids of a conversation; see `Tokenizer.encode_chat`."""
        tokenizer = self._required("chat")
        return await asyncio.to_thread(tokenizer.encode_chat, messages, **template_arguments)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a user's ids, special tokens among it. Raises BadRequest."""
        return await asyncio.to_thread(self._required("text").decode_given, token_ids)

    async def prompt_texts(
        self, token_ids: Sequence[int], prompt: str | None, *, is_whole: bool
    ) -> list[str]:
        """The text of each token of a prompt; see `Tokenizer.prompt_texts`."""
        tokenizer = self._required("text")
        return await asyncio.to_thread(tokenizer.prompt_texts, token_ids, prompt, is_whole=is_whole)

    def _required(self, purpose: str) -> Tokenizer:
        if self.tokenizer is None:
            raise BadRequest(
                f"The checkpoint has no tokenizer that this process can read; {purpose} needs one. "
                "Use token ids."
            )
        return self.tokenizer
