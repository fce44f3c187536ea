"""Shapes of the tiles in which products of float8 are computed. All are 128 inputs deep."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.kernels.dense.input_shares import share_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledTile:
    """One of few variants of a kernel, each of which is compiled for itself."""

    rows: int
    """The tokens of a tile: below 64 the weights are the left operand."""
    columns: int
    """The outputs of a tile, 128 at most, so that they share a block's scale."""
    num_warps: int
    num_stages: int
    halves: int = 1
    """1 or 2 tiles of `columns` side by side, for the same rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTiles:
    """How a linear layer of up to `max_tokens` is divided."""

    max_tokens: float
    tile: ScaledTile
    programs_per_sm: int
    """How many programs a multiprocessor runs at a time: shared memory has room for no more."""
    max_summands: int
    """The most programs that divide the inputs of a tile among them."""
    is_rounded_first: bool
    """Whether a kernel of its own rounds the inputs; else each program does, for itself."""

    def divide(self, outputs: int, num_blocks: int, num_sms: int) -> tuple[int, int]:
        """Blocks of inputs per program, and how many programs share a tile.

        As many as let all multiprocessors end together, whatever the tokens: so the sums of a row
        do not depend on those beside it.
        """
        num_tiles = -(-outputs // (self.tile.columns * self.tile.halves))
        return share_inputs(
            num_tiles,
            num_blocks,
            capacity=num_sms * self.programs_per_sm,
            max_summands=self.max_summands,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTiles:
    """How experts of up to `max_mean_rows` rows on average are divided."""

    max_mean_rows: float
    gate_up: ScaledTile
    down: ScaledTile
    is_rounded_first: bool
    """Whether a kernel rounds the inputs, and gate_up the hidden layer; else each program does."""


def _tile(rows: int, columns: int, num_warps: int, num_stages: int, halves: int = 1) -> ScaledTile:
    return ScaledTile(
        rows=rows, columns=columns, num_warps=num_warps, num_stages=num_stages, halves=halves
    )


def _linear(
    max_tokens: float,
    tile: ScaledTile,
    programs_per_sm: int,
    max_summands: int,
    *,
    is_rounded_first: bool,
) -> LinearTiles:
    return LinearTiles(
        max_tokens=max_tokens,
        tile=tile,
        programs_per_sm=programs_per_sm,
        max_summands=max_summands,
        is_rounded_first=is_rounded_first,
    )


def _experts(
    max_mean_rows: float, gate_up: ScaledTile, down: ScaledTile, *, is_rounded_first: bool
) -> ExpertTiles:
    return ExpertTiles(
        max_mean_rows=max_mean_rows, gate_up=gate_up, down=down, is_rounded_first=is_rounded_first
    )


LINEAR_TILES: tuple[LinearTiles, ...] = (
    _linear(16, _tile(16, 64, 4, 5), 3, 16, is_rounded_first=False),
    _linear(32, _tile(32, 64, 4, 4), 3, 16, is_rounded_first=False),
    _linear(64, _tile(64, 64, 4, 5), 2, 8, is_rounded_first=True),
    _linear(256, _tile(64, 128, 4, 4), 2, 4, is_rounded_first=True),
    _linear(1024, _tile(128, 128, 8, 4), 1, 2, is_rounded_first=True),
    _linear(float("inf"), _tile(128, 128, 8, 4, halves=2), 1, 1, is_rounded_first=True),
)
EXPERT_TILES: tuple[ExpertTiles, ...] = (
    _experts(12, _tile(16, 64, 4, 4), _tile(16, 64, 4, 5), is_rounded_first=False),
    _experts(26, _tile(32, 128, 8, 4), _tile(32, 128, 4, 5), is_rounded_first=True),
    _experts(68, _tile(64, 128, 8, 4), _tile(64, 128, 4, 5), is_rounded_first=True),
    _experts(
        float("inf"), _tile(128, 128, 8, 4), _tile(128, 128, 8, 4, halves=2), is_rounded_first=True
    ),
)


def linear_tiles(num_tokens: int, among: Sequence[LinearTiles] = LINEAR_TILES) -> LinearTiles:
    """The division of a linear layer's product, by its tokens."""
    return next(tiles for tiles in among if num_tokens <= tiles.max_tokens)


def expert_tiles(
    num_pairs: int, num_experts: int, among: Sequence[ExpertTiles] = EXPERT_TILES
) -> ExpertTiles:
    """The division of experts' products, by the mean number of rows per expert."""
    return next(tiles for tiles in among if num_pairs <= tiles.max_mean_rows * num_experts)
