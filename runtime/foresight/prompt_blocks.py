"""The blocks of prompts that are made of named parts."""

from collections.abc import Sequence

from raydix.runtime.foresight.traces import BLOCK_TOKENS

Part = tuple[str, int]
"""The name of a part of a prompt, and its tokens."""


class PromptBlocks:
    """Numbers the blocks of prompts, each with all that comes before it."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self._block_tokens = block_tokens
        self._numbers: dict[tuple[int, tuple[tuple[str, int], ...], int], int] = {}

    def of(self, parts: Sequence[Part]) -> tuple[tuple[int, ...], int | None]:
        """The whole blocks of a prompt, and the last one if it is not whole."""
        blocks: list[int] = []
        content: list[tuple[str, int]] = []
        room = self._block_tokens
        for name, num_tokens in parts:
            start = 0
            while num_tokens - start >= room:
                content.append((name, start))
                blocks.append(self._number(blocks, content, self._block_tokens))
                start, room, content = start + room, self._block_tokens, []
            if start < num_tokens:
                content.append((name, start))
                room -= num_tokens - start
        partial = self._number(blocks, content, self._block_tokens - room) if content else None
        return tuple(blocks), partial

    def _number(self, before: list[int], content: list[tuple[str, int]], num_tokens: int) -> int:
        key = (before[-1] if before else -1, tuple(content), num_tokens)
        return self._numbers.setdefault(key, len(self._numbers))
