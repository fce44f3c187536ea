"""Shapes of the tiles in which experts' products are computed."""

from dataclasses import dataclass

import torch

_Row = tuple[int, int, int, int, int | None]
"""The fields of a `TileShape` in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileShape:
    """Tile of one GEMM: `columns` of the output, `depth` of the sum at a time, the block's rows."""

    columns: int
    depth: int
    num_warps: int
    num_stages: int
    programs_per_sm: int | None
    """The programs per multiprocessor; None: one program for each tile that there might be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Shapes for both GEMMs of a bucket: up to `max_mean_rows` rows per expert on average."""

    max_mean_rows: float
    block_rows: int
    gate_up: TileShape
    down: TileShape


def _tiles(max_mean_rows: float, block_rows: int, gate_up: _Row, down: _Row) -> Tiles:
    return Tiles(
        max_mean_rows=max_mean_rows,
        block_rows=block_rows,
        gate_up=_shape(*gate_up),
        down=_shape(*down),
    )


def _shape(
    columns: int, depth: int, num_warps: int, num_stages: int, programs_per_sm: int | None
) -> TileShape:
    return TileShape(
        columns=columns,
        depth=depth,
        num_warps=num_warps,
        num_stages=num_stages,
        programs_per_sm=programs_per_sm,
    )


_BFLOAT16_TILES = (
    _tiles(12, 16, (128, 128, 8, 3, None), (128, 128, 4, 3, 2)),
    _tiles(26, 32, (128, 128, 8, 3, None), (128, 64, 4, 5, 2)),
    _tiles(68, 64, (128, 64, 4, 4, None), (128, 64, 4, 4, 2)),
    _tiles(float("inf"), 128, (128, 64, 8, 4, None), (256, 64, 8, 4, 1)),
)
_FLOAT32_TILES = (_tiles(float("inf"), 16, (32, 32, 4, 2, 2), (32, 32, 4, 2, 2)),)


def choose_tiles(num_pairs: int, num_experts: int, dtype: torch.dtype) -> Tiles:
    """Tile shapes for a bucket of steps, by the mean number of rows per expert.

    Measured at 128 experts x 768 on an H200.
    """
    table = _FLOAT32_TILES if dtype == torch.float32 else _BFLOAT16_TILES
    return next(tiles for tiles in table if num_pairs <= tiles.max_mean_rows * num_experts)
