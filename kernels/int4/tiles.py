"""Shapes of the tiles in which products with weights of four bits are computed.

Weights are always the left operand, as they come from registers, whatever the tokens. Tiles of many
outputs load inputs less often, which for more than 32 tokens are more bytes than the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.kernels.dense.input_shares import share_inputs

_MAX_DEPTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Tile:
    """One of few variants of a kernel, each of which is compiled for itself."""

    rows: int
    """The tokens of a tile."""
    columns: int
    """The outputs of a tile, of which each warp has 16 or a multiple."""
    num_warps: int
    num_stages: int

    def __post_init__(self) -> None:
        assert self.columns % (16 * self.num_warps) == 0, f"{self} gives warps no whole rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTiles:
    """How a linear layer of up to `max_tokens` is divided."""

    max_tokens: int
    tile: Int4Tile
    programs_per_sm: int
    """How many programs a multiprocessor runs at a time."""
    max_summands: int
    """The most programs that divide the inputs of a tile among them."""

    def divide(self, outputs: int, num_steps: int, num_sms: int) -> tuple[int, int]:
        """Steps of inputs per program, and how many programs share a tile."""
        return share_inputs(
            -(-outputs // self.tile.columns),
            num_steps,
            capacity=num_sms * self.programs_per_sm,
            max_summands=self.max_summands,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTiles:
    """How experts of up to `max_mean_rows` rows on average are divided."""

    max_mean_rows: float
    gate_up: Int4Tile
    """`columns`: those of gate, and as many of up."""
    down: Int4Tile


def _tile(rows: int, columns: int, num_warps: int, num_stages: int) -> Int4Tile:
    return Int4Tile(rows=rows, columns=columns, num_warps=num_warps, num_stages=num_stages)


def _linear(
    max_tokens: int, tile: Int4Tile, programs_per_sm: int, max_summands: int
) -> LinearTiles:
    return LinearTiles(
        max_tokens=max_tokens,
        tile=tile,
        programs_per_sm=programs_per_sm,
        max_summands=max_summands,
    )


def _experts(max_mean_rows: float, gate_up: Int4Tile, down: Int4Tile) -> ExpertTiles:
    return ExpertTiles(max_mean_rows=max_mean_rows, gate_up=gate_up, down=down)


# Reasoned from instructions and bytes, and run on one H200 (ADR 51): `benchmarks.int4 --tune`
# prints what to set here. A summand is written and read as float32, which costs as much as some
# steps of its tile do.
LINEAR_TILES: tuple[LinearTiles, ...] = (
    _linear(16, _tile(16, 64, 4, 5), 4, 16),
    _linear(32, _tile(32, 64, 4, 4), 3, 8),
    _linear(64, _tile(64, 128, 8, 4), 1, 4),
    _linear(128, _tile(128, 128, 8, 4), 1, 2),
)
"""Past the last, the matrix is restored in scratch."""
EXPERT_TILES: tuple[ExpertTiles, ...] = (
    _experts(12, _tile(16, 64, 4, 4), _tile(16, 64, 4, 5)),
    _experts(26, _tile(32, 64, 4, 4), _tile(32, 64, 4, 4)),
    _experts(float("inf"), _tile(64, 128, 8, 3), _tile(64, 128, 8, 4)),
)
"""Sums of gate and up for 128 rows would not fit in registers beside floats in the making."""


def linear_tiles(
    num_tokens: int, among: Sequence[LinearTiles] = LINEAR_TILES
) -> LinearTiles | None:
    """The division of a linear layer's product, by its tokens; None: they are too many."""
    return next((tiles for tiles in among if num_tokens <= tiles.max_tokens), None)


def expert_tiles(
    num_pairs: int, num_experts: int, among: Sequence[ExpertTiles] = EXPERT_TILES
) -> ExpertTiles:
    """The division of experts' products, by the mean number of rows per expert."""
    return next(tiles for tiles in among if num_pairs <= tiles.max_mean_rows * num_experts)


def step_depth(group: int | None) -> int:
    """The inputs of a step, all of which are of one group: the most of 32, 64 and 128."""
    depth = _MAX_DEPTH
    while group is not None and group % depth:
        depth //= 2
    return depth
