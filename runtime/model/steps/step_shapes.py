"""Sizes of steps that are captured in CUDA graphs: decodes, short extensions of a prefix, and
prompts, with decodes or alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from raydix.kernels.sampling.columns import COLUMN_DTYPES
from raydix.runtime.model.staging.columns import INT32, INT64, Column, ColumnForm, Layout

TOKEN_NAMES = ("token_index_T", "page_index_T", "page_offset_T", "positions_T")
"""Columns by token: see `TokenColumns`."""
TILE_NAMES = ("slots_Y", "first_tokens_Y", "num_tokens_Y", "contexts_Y")
"""Columns by tile of few tokens: its slot, its first index in T, its tokens, and its context up to
and including the last of them."""
SEQUENCE_NAMES = ("slots_S", "first_tokens_S", "num_tokens_S", "contexts_S")
"""The same of rows of several tokens, uncut, which layers that keep states need."""
EXTENSION_TOKENS = (16, 32, 64, 128)
"""The captured lengths of a single row of a few tokens; longer ones are steps of prompts."""
USUAL_PREFILL_TOKENS = 2048
"""The chunk of an engine that is not told another."""
_MAX_PROMPT_ROWS = 128
_PROMPT_TOKENS = (
    *range(32, 128, 32),
    *range(128, 256, 64),
    *range(256, 512, 128),
    *range(512, 768, 64),
    *range(768, USUAL_PREFILL_TOKENS + 1, 128),
    USUAL_PREFILL_TOKENS + _MAX_PROMPT_ROWS,
)
"""Up to the usual chunk and a token of every row.

Not 320 and 448: a layer's products alone take cuBLAS 162 us for 320 tokens and 129 for 384, and as
long for 448 as for 512 (dense_l16, one run on an H100, 2026-11).
"""
_FEW_MORE_ROWS = 32
"""The number of rows beyond those that each such step has as padding, for want of more shapes."""
_CROWDED_TOKENS = (*range(256, 2048, 256), *range(2048, 4096 + 1, 512))
"""Sizes of steps of prompts with more rows. A host of one H200 needed some 30 ms to enqueue 512
rows and 1,500 tokens, which the device has computed in 17 (dense_l16, as simulated by its profile,
2026-11): larger steps wait for their launches, too.
"""
_LARGE_TOKENS = tuple(range(2560, 8192 + 1, 512))
"""Sizes of steps of larger chunks. A host of one H200 needed 28 ms to enqueue any of them, of which
the device has computed 4,096 tokens in half of the time (moe_l12, 2026-11). Still larger ones hide
their launches.
"""
_MAX_SEQUENCES = 16
"""Rows of several tokens beside which a step of prompts changes states. Kernels start for all of
them, be there so many or not; of more prompts in one step each is short."""
_MORE_TILES = 16
"""Tiles beyond those that tokens fill: each row, and the padding behind them, may end in a tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a captured step has room for; what its rows leave is padding."""

    num_tokens: int
    num_rows: int
    tokens_per_tile: int
    """Query tokens in a tile of attention with few tokens."""
    num_prompt_tiles: int = 0
    """Tiles of rows of several tokens; if there are any, the others are for single tokens."""
    tokens_per_prompt_tile: int = 1
    num_sequences: int = 0
    """Rows of several tokens whose states it changes; 0: no layer keeps states, or no such row."""

    @property
    def is_decode(self) -> bool:
        """Is it made for rows of one token?"""
        return self.num_rows == self.num_tokens and not self.num_prompt_tiles

    @property
    def waits_by_layer(self) -> bool:
        """Does each layer wait for its own part of a load, and not the step for all of it?"""
        return self.num_prompt_tiles > 0

    @property
    def num_tiles(self) -> int:
        """Enough tiles for any rows that fit: each may end within one, and so may the padding."""
        if self.num_prompt_tiles or self.is_decode:
            return self.num_rows
        return -(-self.num_tokens // self.tokens_per_tile) + self.num_rows

    @property
    def layout(self) -> Layout:
        """Names and forms of the step's columns: see `step_columns`."""
        return _layout(self)

    def holds(self, num_rows: int, num_tokens: int) -> bool:
        """Is there room for any rows of this number, of so many tokens together?"""
        if num_rows > self.num_rows or num_tokens > self.num_tokens:
            return False
        return num_rows == num_tokens if self.is_decode else not self.num_prompt_tiles

    def holds_prompts(self, num_tokens: Column) -> bool:
        """Is there room for rows of these numbers of tokens, and for the padding behind them?"""
        missing = self.num_tokens - int(num_tokens.sum())
        if not self.num_prompt_tiles or missing < 0 or len(num_tokens) > self.num_rows:
            return False
        several = num_tokens[num_tokens > 1]
        if self.num_sequences and len(several) > self.num_sequences:
            return False
        tiles = -(-several // self.tokens_per_prompt_tile)
        padding = -(-missing // self.tokens_per_prompt_tile)
        return int(tiles.sum()) + padding <= self.num_prompt_tiles


@cache
def _layout(shape: StepShape) -> Layout:
    # Kept: to make it takes as long as to pack a step's columns.
    by_token = ColumnForm(INT64, (shape.num_tokens,))
    by_tile = ColumnForm(INT64, (shape.num_tiles,))
    by_row = ColumnForm(INT64, (shape.num_rows,))
    by_sequence = ColumnForm(INT64, (shape.num_sequences,))
    return Layout(
        {
            **dict.fromkeys(TOKEN_NAMES, by_token),
            **dict.fromkeys(TILE_NAMES, by_tile),
            "tiles_X4": ColumnForm(INT32, (shape.num_prompt_tiles, 4)),
            **(dict.fromkeys(SEQUENCE_NAMES, by_sequence) if shape.num_sequences else {}),
            "last_tokens_R": by_row,
            "next_index_R": by_row,
            **{name: replace(by_row, dtype=dtype) for name, dtype in COLUMN_DTYPES.items()},
        }
    )


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


def prompt_shapes(max_rows: int, tokens_per_tile: int) -> tuple[StepShape, ...]:
    """Rows of several tokens and of one, by rising size: up to `max_rows`, or few of them."""
    most = max_rows if _are_few(max_rows) else _MAX_PROMPT_ROWS
    return tuple(_prompt_shape(size, most, tokens_per_tile) for size in _PROMPT_TOKENS)


def large_shapes(
    max_rows: int, tokens_per_tile: int, max_prefill_tokens: int
) -> tuple[StepShape, ...]:
    """The same of more tokens, or more rows, than `prompt_shapes` have room for.

    `max_prefill_tokens`: those of prompts in a step, beside which others decode.
    """
    sizes = {size for size in _LARGE_TOKENS if size <= max_prefill_tokens}
    if USUAL_PREFILL_TOKENS < max_prefill_tokens <= max(_LARGE_TOKENS):
        # Full chunks beside decodes: few, and up to all that there may be.
        sizes.add(max_prefill_tokens + min(max_rows, _MAX_PROMPT_ROWS))
        sizes.update(range(max_prefill_tokens + 512, max_prefill_tokens + max_rows, 512))
        sizes.add(max_prefill_tokens + max_rows)
    if not _are_few(max_rows):
        sizes.update(_CROWDED_TOKENS)
    return tuple(
        # Each row has a token at least.
        _prompt_shape(size, min(max_rows, size), tokens_per_tile)
        for size in sorted(sizes)
    )


def _are_few(max_rows: int) -> bool:
    return max_rows <= _MAX_PROMPT_ROWS + _FEW_MORE_ROWS


def _prompt_shape(num_tokens: int, num_rows: int, tokens_per_tile: int) -> StepShape:
    return StepShape(
        num_tokens=num_tokens,
        num_rows=num_rows,
        tokens_per_tile=1,
        num_prompt_tiles=-(-num_tokens // tokens_per_tile) + _MORE_TILES,
        tokens_per_prompt_tile=tokens_per_tile,
    )


def keeping_states(shape: StepShape) -> StepShape:
    """The same for a model with layers that keep states."""
    if shape.is_decode:
        return shape
    most = _MAX_SEQUENCES if shape.num_prompt_tiles else shape.num_rows
    return replace(shape, num_sequences=min(most, shape.num_rows))


def choose_prompt_shape(num_tokens: Column, shapes: Sequence[StepShape]) -> StepShape | None:
    """The first shape with room for rows of these numbers of tokens; None if there is none."""
    total = int(num_tokens.sum())
    large_enough = (shape for shape in shapes if shape.num_tokens >= total)
    return next((shape for shape in large_enough if shape.holds_prompts(num_tokens)), None)


def padded_tokens(num_tokens: int) -> int:
    """The smallest of `prompt_shapes` with room for so many tokens; these, if none has."""
    return next((size for size in _PROMPT_TOKENS if size >= num_tokens), num_tokens)


def max_captured_tokens(max_rows: int) -> int:
    """Most tokens of a step that `decode_shapes` or `extension_shapes` hold, with padding."""
    return max(max_rows, *EXTENSION_TOKENS)
