"""Sizes of steps that are captured in CUDA graphs: decodes, and short extensions of a prefix."""

from dataclasses import dataclass

from raydix.kernels.sampling_columns import NUM_COLUMNS
from raydix.runtime.model.columns import packed_size

EXTENSION_TOKENS = (16, 32, 64, 128)
"""Longer extensions have work enough to hide their launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a captured step has room for; what its rows leave is padding."""

    num_tokens: int
    num_rows: int
    tokens_per_tile: int
    """Query tokens in a tile of attention."""

    @property
    def is_decode(self) -> bool:
        """Is it made for rows of one token?"""
        return self.num_rows == self.num_tokens

    @property
    def num_tiles(self) -> int:
        """Enough tiles for any rows that fit: each may end within one, and so may the padding."""
        if self.tokens_per_tile == 1:
            return self.num_tokens
        return -(-self.num_tokens // self.tokens_per_tile) + self.num_rows

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the step's columns.

        There are 4 by token, 4 by tile and, by row that samples, 2 and those of `SamplingColumns`.
        """
        by_row = (self.num_rows,) * (2 + NUM_COLUMNS)
        return (self.num_tokens,) * 4 + (self.num_tiles,) * 4 + by_row

    @property
    def packed_size(self) -> int:
        """Numbers in its packed columns."""
        return packed_size(self.lengths)

    def holds(self, num_rows: int, num_tokens: int) -> bool:
        """Is there room for so many rows, of so many tokens together?"""
        is_enough = num_rows <= self.num_rows and num_tokens <= self.num_tokens
        return is_enough and (num_rows == num_tokens or not self.is_decode)


def decode_shapes(max_rows: int) -> tuple[StepShape, ...]:
    """Batches of single tokens, by rising size, up to `max_rows`.

    A step is padded to the next one.
    """
    fine = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_rows, 32)]
    sizes = (*(size for size in fine if size < max_rows), max_rows)
    return tuple(StepShape(num_tokens=size, num_rows=size, tokens_per_tile=1) for size in sizes)


def extension_shapes(max_tokens: int, tokens_per_tile: int) -> tuple[StepShape, ...]:
    """One row of a few tokens, by rising size, up to `max_tokens`."""
    sizes = [size for size in EXTENSION_TOKENS if size <= max_tokens]
    return tuple(
        StepShape(num_tokens=size, num_rows=1, tokens_per_tile=tokens_per_tile) for size in sizes
    )


def max_captured_tokens(max_rows: int) -> int:
    """Most tokens of a captured step, padding included, if up to `max_rows` decode."""
    return max(max_rows, *EXTENSION_TOKENS)
