"""Measure products with weights of four bits against the same of bf16.

    python -m benchmarks.int4 [--tune [--only linear] [--tokens 8,4096]]

Linear layers and experts of DeepSeek-V3 and of Qwen3-30B-A3B, in groups of 128 inputs, as a layer
calls them. Every product runs in a CUDA graph over so many copies of its weights that L2 holds none
of them. Experts are timed with one copy of their weights, behind a flush of L2.

`--tune` prints candidates for each number of tokens instead, best first: what to set in
`kernels/int4/tiles.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.device.gpu_timing import Work, capture, graph_us, median_ms
from benchmarks.fp8 import (
    EXPERT_SHAPES,
    LINEAR_SHAPES,
    ExpertShape,
    ProductBench,
    linear_of_bf16,
    print_ways,
    ratio_figures,
)
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.int4.form import MIDDLE, Int4Groups
from raydix.kernels.int4.int4_experts import int4_experts
from raydix.kernels.int4.int4_product import int4_summands
from raydix.kernels.int4.restoring import restore
from raydix.kernels.int4.tiles import (
    EXPERT_TILES,
    ExpertTiles,
    Int4Tile,
    LinearTiles,
)
from raydix.kernels.moe.grouped_gemm import fused_experts
from raydix.kernels.moe.topk_gating import topk_gating
from raydix.kernels.weights.int4_weight import Int4Weight
from raydix.kernels.weights.weight import Weight

ROTATED_BYTES = 400_000_000
"""The bytes of all copies of a matrix in four bits, which take turns."""
MAX_COPIES = 96
GROUP = 128
NUM_TOKENS = (1, 8, 32, 64, 128, 256, 1024, 4096, 8192)
FEW_TOKENS = 64
MIN_SPEEDUP_FEW, MIN_SPEEDUP = 1.6, 1.0


def min_speedup(num_tokens: int) -> float:
    """The bar over bf16."""
    return MIN_SPEEDUP_FEW if num_tokens <= FEW_TOKENS else MIN_SPEEDUP


def random_weight(*shape: int) -> Int4Weight:
    """A matrix, or a bank, of random numbers whose scales are of one size."""
    *front, outputs, inputs = shape
    numbers = torch.randint(256, (*front, outputs, inputs // 2), dtype=torch.uint8, device="cuda")
    groups = *front, -(-inputs // GROUP), outputs
    scales = torch.full(groups, inputs**-0.5 / 4, device="cuda")
    zeros = torch.full(groups, MIDDLE, dtype=torch.uint8, device="cuda")
    return Int4Weight(Weight(numbers, None), scales, zeros, Int4Groups(GROUP))


class Linear:
    """Copies of a matrix that L2 cannot hold together, in bf16 and in four bits."""

    def __init__(self, outputs: int, inputs: int) -> None:
        count = min(max(2, 2 * ROTATED_BYTES // (outputs * inputs)), MAX_COPIES)
        self.inputs = inputs
        # Fewer of bf16 are as large.
        self.matrices = [
            torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda") * inputs**-0.5
            for _ in range(max(2, count // 4))
        ]
        self.weights = [random_weight(outputs, inputs) for _ in range(count)]

    def bf16_us(self, num_tokens: int) -> float:
        """Time of one product of bf16."""
        return self._each_us(num_tokens, self.matrices, linear_of_bf16)

    def int4_us(self, num_tokens: int, tiles: LinearTiles | None = None) -> float:
        """Time of one product of four bits."""
        return self._each_us(num_tokens, self.weights, lambda x, w: int4_summands(x, w, tiles))

    def restored_us(self, num_tokens: int) -> float:
        """Time of restoring the matrix in scratch, and of a product with it."""
        return self._each_us(
            num_tokens,
            self.weights,
            lambda x, w: functional.linear(x, restore(w, x.dtype)),
        )

    def _each_us(
        self, num_tokens: int, weights: Sequence[Any], product: Callable[[Tensor, Any], Tensor]
    ) -> float:
        x = torch.randn(num_tokens, self.inputs, dtype=torch.bfloat16, device="cuda")

        def work() -> None:
            for weight in weights:
                product(x, weight)

        return graph_us(work, len(weights))


class Experts:
    """A layer of experts, in bf16 and in four bits."""

    def __init__(self, shape: ExpertShape) -> None:
        self.shape = shape
        sizes = (2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)
        self.gate_up_floats, self.down_floats = (
            torch.empty(shape.experts, *size, dtype=torch.bfloat16, device="cuda").normal_(
                std=size[1] ** -0.5
            )
            for size in sizes
        )
        self.gate_up, self.down = (random_weight(shape.experts, *size) for size in sizes)

    def works(
        self, num_tokens: int, tiles: Sequence[ExpertTiles | None] = (None,)
    ) -> tuple[Work, list[Work]]:
        """The layer in bf16, and in four bits with each division, of the same tokens."""
        x = torch.randn(num_tokens, self.shape.hidden, dtype=torch.bfloat16, device="cuda")
        logits = torch.randn(num_tokens, self.shape.experts, device="cuda")
        chosen = topk_gating(logits, self.shape.choices, renormalise=True)
        form = SiluGlu()

        def bf16() -> Tensor:
            weights = self.gate_up_floats, self.down_floats
            return fused_experts(x, *weights, *chosen, form=form, biases=None)

        def int4(division: ExpertTiles | None) -> Work:
            return lambda: int4_experts(
                x, self.gate_up, self.down, *chosen, form=form, tiles=division
            )

        return capture(bf16), [capture(int4(each)) for each in tiles]

    def int4_us(self, num_tokens: int, tiles: ExpertTiles) -> float:
        """Time of the layer in four bits with a division."""
        return _us(self.works(num_tokens, [tiles])[1][0])


def _figures(name: str, num_tokens: int, bf16_us: float, int4_us: float) -> list[Figure]:
    where = f"{name}, {num_tokens} tokens"
    return ratio_figures(where, bf16_us, int4_us, min_speedup(num_tokens))


def measure_linear() -> list[Figure]:
    """Figures of all linear layers."""
    figures = []
    for name, size in LINEAR_SHAPES.items():
        linear = Linear(*size)
        for count in NUM_TOKENS:
            figures += _figures(name, count, linear.bf16_us(count), linear.int4_us(count))
    return figures


def measure_experts() -> list[Figure]:
    """Figures of all layers of experts."""
    figures = []
    for shape in EXPERT_SHAPES:
        experts = Experts(shape)
        for count in NUM_TOKENS:
            bf16, [int4] = experts.works(count)
            times = median_ms(bf16) * 1e3, median_ms(int4) * 1e3
            figures += _figures(f"{shape.name} experts", count, *times)
    return figures


_SHAPES = (64, 4, 5), (64, 4, 3), (128, 8, 4), (128, 8, 3)
"""Outputs, warps and stages of the tiles that are tried."""


def _tiles(num_rows: float) -> list[Int4Tile]:
    """Tiles that are worth a try where so many rows meet; each is compiled."""
    rows = next((each for each in (16, 32, 64) if num_rows <= each), 128)
    return [
        Int4Tile(rows=rows, columns=columns, num_warps=num_warps, num_stages=num_stages)
        for columns, num_warps, num_stages in _SHAPES
    ]


def linear_candidates(num_tokens: int) -> list[LinearTiles]:
    """Divisions that are worth a try."""
    return [
        LinearTiles(
            max_tokens=num_tokens, tile=tile, programs_per_sm=programs, max_summands=summands
        )
        for tile in _tiles(num_tokens)
        for programs, summands in ((1, 4), (2, 4), (4, 2), (4, 16))
    ]


def expert_candidates(mean_rows: float) -> list[ExpertTiles]:
    """Divisions that are worth a try: each tile for both products."""
    # Experts are not chosen alike: most rows are in blocks of more than the mean.
    return [
        ExpertTiles(max_mean_rows=mean_rows, gate_up=tile, down=tile)
        for tile in _tiles(min(mean_rows * 4 / 3, 64))
    ]


def tune_linear(num_tokens: Sequence[int]) -> None:
    """Print times of candidates for each linear layer, best first."""
    for name, size in LINEAR_SHAPES.items():
        linear = Linear(*size)
        for count in num_tokens:
            ways = {"bf16": linear.bf16_us(count), "as set": linear.int4_us(count)}
            ways |= _tried("restored", partial(linear.restored_us, count))
            for tiles in linear_candidates(count):
                ways |= _tried(str(tiles), partial(linear.int4_us, count, tiles))
            print_ways(f"{name} {size} {count} tokens", ways)


def tune_experts(num_tokens: Sequence[int]) -> None:
    """Print times of candidates for each layer of experts, best first."""
    for shape in EXPERT_SHAPES:
        experts = Experts(shape)
        for count in num_tokens:
            mean_rows = count * shape.choices / shape.experts
            ways = {"bf16": _us(experts.works(count, ())[0])}
            for tiles in (*EXPERT_TILES, *expert_candidates(mean_rows)):
                ways |= _tried(str(tiles), partial(experts.int4_us, count, tiles))
            print_ways(f"{shape.name} experts {count} tokens ({mean_rows:g} rows each)", ways)


def _us(work: Work) -> float:
    return median_ms(work, 60) * 1e3


def _tried(name: str, measure: Callable[[], float]) -> dict[str, float]:
    """The time of a candidate; nothing if shared memory has no room for it."""
    try:
        return {name: measure()}
    except RuntimeError as error:
        print(f"{name}: {str(error).splitlines()[0]}")
        return {}


INT4 = ProductBench(
    name="int4",
    description=__doc__,
    num_tokens=NUM_TOKENS,
    measure=lambda: measure_linear() + measure_experts(),
    tune_linear=tune_linear,
    tune_experts=tune_experts,
    config={"group": GROUP},
)

if __name__ == "__main__":
    run(INT4.main)
