"""Candidates for the tiles in which products of float8 are computed: what `fp8 --tune` tries."""

from dataclasses import dataclass

from raydix.kernels.fp8.scaled_tiles import ExpertTiles, LinearTiles, ScaledTile

_Row = tuple[int, int, int, int, int]
"""Rows, columns, warps, stages and halves of a tile."""


@dataclass(frozen=True, kw_only=True)
class LinearCandidate:
    """A division that is tried for some numbers of tokens."""

    tiles: LinearTiles
    least: int
    most: int

    def fits(self, num_tokens: int) -> bool:
        """Whether it is worth a try."""
        return self.least <= num_tokens <= self.most


@dataclass(frozen=True, kw_only=True)
class ExpertCandidate:
    """A division that is tried for some mean numbers of rows per expert."""

    tiles: ExpertTiles
    least: float
    most: float

    def fits(self, mean_rows: float) -> bool:
        """Whether it is worth a try."""
        return self.least <= mean_rows <= self.most


def _tile(row: _Row) -> ScaledTile:
    rows, columns, num_warps, num_stages, halves = row
    return ScaledTile(
        rows=rows, columns=columns, num_warps=num_warps, num_stages=num_stages, halves=halves
    )


def _linear(
    least: int, most: int, row: _Row, programs: int, summands: int, *, first: bool
) -> LinearCandidate:
    tiles = LinearTiles(
        max_tokens=most,
        tile=_tile(row),
        programs_per_sm=programs,
        max_summands=summands,
        is_rounded_first=first,
    )
    return LinearCandidate(tiles=tiles, least=least, most=most)


def _experts(
    least: float, most: float, gate_up: _Row, down: _Row, *, first: bool
) -> ExpertCandidate:
    tiles = ExpertTiles(
        max_mean_rows=most, gate_up=_tile(gate_up), down=_tile(down), is_rounded_first=first
    )
    return ExpertCandidate(tiles=tiles, least=least, most=most)


LINEAR_CANDIDATES = (
    *(
        _linear(least, most, (rows, columns, warps, stages, 1), programs, 16, first=first)
        for least, most, rows in ((1, 16, 16), (17, 32, 32))
        for columns, warps, stages, programs, first in (
            (64, 4, 4, 4, False),
            (64, 4, 5, 3, False),
            (64, 4, 8, 2, False),
            (128, 4, 5, 2, False),
            (64, 4, 5, 4, True),
            (128, 4, 4, 3, True),
            (128, 4, 6, 2, True),
        )
    ),
    _linear(33, 128, (32, 64, 4, 5, 1), 3, 8, first=True),
    _linear(33, 128, (32, 128, 4, 5, 1), 2, 8, first=True),
    _linear(33, 256, (64, 64, 4, 5, 1), 2, 8, first=True),
    _linear(33, 256, (64, 64, 4, 4, 1), 3, 8, first=True),
    _linear(33, 1024, (64, 128, 4, 4, 1), 2, 4, first=True),
    _linear(33, 1024, (64, 128, 8, 4, 1), 2, 4, first=True),
    _linear(65, 8192, (128, 64, 4, 4, 1), 2, 2, first=True),
    _linear(65, 8192, (128, 128, 8, 4, 1), 1, 2, first=True),
    _linear(65, 8192, (128, 128, 8, 3, 1), 1, 1, first=True),
    _linear(513, 8192, (128, 128, 8, 4, 2), 1, 1, first=True),
    _linear(513, 8192, (128, 128, 8, 3, 2), 1, 1, first=True),
    _linear(513, 8192, (64, 128, 4, 4, 2), 1, 1, first=True),
)
EXPERT_CANDIDATES = (
    _experts(0, 16, (16, 64, 4, 4, 1), (16, 64, 4, 5, 1), first=False),
    _experts(0, 16, (16, 32, 4, 5, 1), (16, 64, 4, 4, 1), first=False),
    _experts(0, 16, (16, 128, 8, 4, 1), (16, 128, 4, 4, 1), first=False),
    _experts(0, 16, (16, 128, 8, 3, 1), (16, 128, 8, 3, 1), first=False),
    _experts(0, 16, (16, 128, 8, 3, 1), (16, 128, 4, 4, 1), first=True),
    _experts(0, 16, (16, 128, 8, 5, 1), (16, 64, 4, 6, 1), first=True),
    _experts(8, 40, (32, 64, 4, 4, 1), (32, 64, 4, 5, 1), first=False),
    _experts(8, 40, (32, 128, 8, 4, 1), (32, 128, 4, 5, 1), first=True),
    _experts(8, 40, (32, 128, 8, 3, 1), (32, 128, 8, 3, 1), first=True),
    _experts(16, 300, (64, 128, 8, 4, 1), (64, 128, 4, 5, 1), first=True),
    _experts(16, 300, (64, 128, 8, 3, 1), (64, 128, 4, 4, 2), first=True),
    _experts(16, 600, (64, 128, 8, 5, 1), (64, 128, 8, 4, 2), first=True),
    _experts(60, 600, (128, 128, 8, 4, 1), (128, 128, 8, 4, 2), first=True),
    _experts(60, 600, (128, 128, 8, 3, 1), (128, 128, 8, 4, 1), first=True),
    _experts(60, 600, (128, 128, 8, 3, 1), (128, 128, 8, 3, 1), first=True),
)


def brief(tiles: LinearTiles | ExpertTiles) -> str:
    """A division in a few words."""
    order = "rounded first" if tiles.is_rounded_first else "rounded within"
    if isinstance(tiles, LinearTiles):
        return (
            f"{_told(tiles.tile)}, {tiles.programs_per_sm} programs an SM, at most "
            f"{tiles.max_summands} summands, {order}"
        )
    return f"gate_up {_told(tiles.gate_up)}; down {_told(tiles.down)}; {order}"


def _told(tile: ScaledTile) -> str:
    halves = "" if tile.halves == 1 else " twice"
    return f"{tile.rows} x {tile.columns}{halves}, {tile.num_warps} warps, {tile.num_stages} stages"
