"""Measure products of float8 against the same of bf16, and against torch's of float8.

    python -m benchmarks.fp8 [--tune [--only linear] [--tokens 8,4096]]

Linear layers and experts of DeepSeek-V3 and of Qwen3-30B-A3B, as a layer calls them: rounding the
inputs is part of it. Every product runs in a CUDA graph over so many copies of its weights that L2
holds none of them. `torch._scaled_mm`, of whole tensors and of blocks, gets inputs that are rounded
beforehand. Experts are timed with one copy of their weights, behind a flush of L2.

`--tune` prints candidates for each number of tokens instead, best first: what to set in
`kernels/fp8/scaled_tiles.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.device.gpu_timing import Work, capture, graph_us, median_ms
from benchmarks.device.gpus import require_gpus
from benchmarks.fp8_tiles import EXPERT_CANDIDATES, LINEAR_CANDIDATES, brief
from benchmarks.records.command_line import add_commit, add_results, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.dense.small_linear import fits, small_linear_summands
from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.rounding import round_inputs
from raydix.kernels.fp8.scaled_experts import scaled_experts
from raydix.kernels.fp8.scaled_product import scaled_summands
from raydix.kernels.fp8.scaled_tiles import ExpertTiles, LinearTiles
from raydix.kernels.moe.grouped_gemm import fused_experts
from raydix.kernels.moe.topk_gating import topk_gating
from raydix.kernels.weights.scaled_weight import ScaledWeight
from raydix.kernels.weights.weight import Weight

ROTATED_BYTES = 400_000_000
"""The bytes of all float8 copies of a matrix, which take turns."""
MAX_COPIES = 24
NUM_TOKENS = (1, 8, 32, 64, 256, 1024, 4096, 8192)
FEW_TOKENS, MANY_TOKENS = 64, 4096
MIN_SPEEDUP_FEW, MIN_SPEEDUP_MANY, MIN_SPEEDUP = 1.6, 1.5, 1.0
LINEAR_SHAPES = {
    "DeepSeek-V3 q_b": (24_576, 1536),
    "DeepSeek-V3 kv_a": (576, 7168),
    "DeepSeek-V3 o": (7168, 16_384),
    "DeepSeek-V3 dense gate_up": (36_864, 7168),
    "DeepSeek-V3 shared gate_up": (4096, 7168),
    "DeepSeek-V3 shared down": (7168, 2048),
    "Qwen3-30B qkv": (5120, 2048),
    "Qwen3-30B o": (2048, 4096),
}
"""Outputs and inputs."""


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """A layer of experts."""

    name: str
    hidden: int
    intermediate: int
    experts: int
    choices: int


EXPERT_SHAPES = (
    ExpertShape(name="Qwen3-30B", hidden=2048, intermediate=768, experts=128, choices=8),
    ExpertShape(name="DeepSeek-V3", hidden=7168, intermediate=2048, experts=256, choices=8),
)


def min_speedup(num_tokens: int) -> float:
    """The bar over bf16."""
    if num_tokens <= FEW_TOKENS:
        return MIN_SPEEDUP_FEW
    return MIN_SPEEDUP_MANY if num_tokens >= MANY_TOKENS else MIN_SPEEDUP


def quantise(matrix: Tensor) -> ScaledWeight:
    """A matrix, or a bank, in blocks. Its numbers are of one size: so are the scales."""
    size = float(matrix.view(-1)[:65536].float().std()) / 16
    numbers = torch.empty_like(matrix, dtype=torch.float8_e4m3fn)
    for part, quantised in zip(matrix.split(8192), numbers.split(8192), strict=True):
        quantised.copy_(part / size)
    blocks = -(-matrix.shape[-2] // BLOCK), -(-matrix.shape[-1] // BLOCK)
    scales = torch.full((*matrix.shape[:-2], *blocks), size, device=matrix.device)
    return ScaledWeight(Weight(numbers, None), scales, (BLOCK, BLOCK))


def linear_of_bf16(x_TC: Tensor, matrix_OC: Tensor) -> Tensor:
    """What the engine runs of bf16."""
    if fits(x_TC, matrix_OC):
        return small_linear_summands(x_TC, matrix_OC)
    return functional.linear(x_TC, matrix_OC)


class Linear:
    """Copies of a matrix that L2 cannot hold together, in bf16 and in float8."""

    def __init__(self, outputs: int, inputs: int) -> None:
        count = min(max(2, ROTATED_BYTES // (outputs * inputs)), MAX_COPIES)
        self.inputs = inputs
        self.matrices = [
            torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda") * inputs**-0.5
            for _ in range(count)
        ]
        self.weights = [quantise(each) for each in self.matrices]

    def rows(self, num_tokens: int) -> Tensor:
        """Random inputs of a step."""
        return torch.randn(num_tokens, self.inputs, dtype=torch.bfloat16, device="cuda")

    def bf16_us(self, num_tokens: int) -> float:
        """Time of one product of bf16."""
        return self._each_us(self.rows(num_tokens), self.matrices, linear_of_bf16)

    def float8_us(self, num_tokens: int, tiles: LinearTiles | None = None) -> float:
        """Time of one product of float8."""
        return self._each_us(
            self.rows(num_tokens), self.weights, lambda x, w: scaled_summands(x, w, tiles)
        )

    def torch_us(self, num_tokens: int) -> float:
        """Time of torch's product of float8 with one scale for all."""
        numbers = self.rows(num_tokens).to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")

        def product(x: Tensor, weight: ScaledWeight) -> Tensor:
            matrix_CO = weight.numbers.matrix_OC.T
            return torch._scaled_mm(x, matrix_CO, one, one, out_dtype=torch.bfloat16)

        return self._each_us(numbers, self.weights, product)

    def torch_blocks_us(self, num_tokens: int) -> float:
        """Time of torch's product of float8 in blocks, and of rounding for it."""
        kinds = functional.ScalingType

        def product(x: Tensor, weight: ScaledWeight) -> Tensor:
            numbers, scales_DT = round_inputs(x)
            return functional.scaled_mm(
                numbers,
                weight.numbers.matrix_OC.T,
                scales_DT.T,
                kinds.BlockWise1x128,
                weight.scales_BD.T,
                kinds.BlockWise128x128,
                output_dtype=x.dtype,
            )

        return self._each_us(self.rows(num_tokens), self.weights, product)

    def _each_us(
        self, x: Tensor, weights: Sequence[Any], product: Callable[[Tensor, Any], Tensor]
    ) -> float:
        def work() -> None:
            for weight in weights:
                product(x, weight)

        return graph_us(work, len(weights))


class Experts:
    """A layer of experts, in bf16 and in float8."""

    def __init__(self, shape: ExpertShape) -> None:
        self.shape = shape
        self.gate_up = self._random(2 * shape.intermediate, shape.hidden)
        self.down = self._random(shape.hidden, shape.intermediate)
        self.scaled = quantise(self.gate_up), quantise(self.down)

    def _random(self, rows: int, columns: int) -> Tensor:
        size = self.shape.experts, rows, columns
        return torch.empty(size, dtype=torch.bfloat16, device="cuda").normal_(std=columns**-0.5)

    def works(
        self, num_tokens: int, tiles: Sequence[ExpertTiles | None] = (None,)
    ) -> tuple[Work, list[Work]]:
        """The layer in bf16, and in float8 with each division, of the same tokens."""
        x = torch.randn(num_tokens, self.shape.hidden, dtype=torch.bfloat16, device="cuda")
        logits = torch.randn(num_tokens, self.shape.experts, device="cuda")
        chosen = topk_gating(logits, self.shape.choices, renormalise=True)

        def bf16() -> Tensor:
            weights = self.gate_up, self.down
            return fused_experts(x, *weights, *chosen, form=SiluGlu(), biases=None)

        def float8(division: ExpertTiles | None) -> Work:
            return lambda: scaled_experts(x, *self.scaled, *chosen, form=SiluGlu(), tiles=division)

        return capture(bf16), [capture(float8(each)) for each in tiles]


def ratio_figures(where: str, bf16_us: float, kept_us: float, least: float) -> list[Figure]:
    """What bf16 and weights that stay take, and the speedup, which is to be at least `least`."""
    return [
        Figure(name=where, value=kept_us, unit="us", baseline=bf16_us, baseline_name="bf16"),
        Figure(name=f"{where}, speedup", value=bf16_us / kept_us, unit="1", min_value=least),
    ]


def _figures(name: str, num_tokens: int, bf16_us: float, float8_us: float) -> list[Figure]:
    where = f"{name}, {num_tokens} tokens"
    return ratio_figures(where, bf16_us, float8_us, min_speedup(num_tokens))


def measure_linear() -> list[Figure]:
    """Figures of all linear layers."""
    figures = []
    for name, size in LINEAR_SHAPES.items():
        linear = Linear(*size)
        for count in NUM_TOKENS:
            figures += _figures(name, count, linear.bf16_us(count), linear.float8_us(count))
            if count % 16 == 0:
                figures.append(
                    Figure(
                        name=f"{name}, {count} tokens, torch._scaled_mm, rounded before",
                        value=linear.torch_us(count),
                        unit="us",
                    )
                )
    return figures


def measure_experts() -> list[Figure]:
    """Figures of all layers of experts."""
    figures = []
    for shape in EXPERT_SHAPES:
        experts = Experts(shape)
        for count in NUM_TOKENS:
            bf16, [float8] = experts.works(count)
            times = median_ms(bf16) * 1e3, median_ms(float8) * 1e3
            figures += _figures(f"{shape.name} experts", count, *times)
        del experts
    return figures


def tune_linear(num_tokens: Sequence[int]) -> None:
    """Print times of candidates for each linear layer, best first."""
    for name, size in LINEAR_SHAPES.items():
        linear = Linear(*size)
        for count in num_tokens:
            ways = {"bf16": linear.bf16_us(count)}
            if count % 16 == 0:
                ways["torch"] = linear.torch_us(count)
                try:
                    ways["torch, in blocks"] = linear.torch_blocks_us(count)
                except (RuntimeError, AttributeError, ValueError) as error:
                    print(f"torch's product in blocks: {str(error).splitlines()[0]}")
            for tiles in LINEAR_CANDIDATES:
                if tiles.fits(count):
                    ways[brief(tiles.tiles)] = linear.float8_us(count, tiles.tiles)
            print_ways(f"{name} {size} {count} tokens", ways)


def tune_experts(num_tokens: Sequence[int]) -> None:
    """Print times of candidates for each layer of experts, best first."""
    for shape in EXPERT_SHAPES:
        experts = Experts(shape)
        for count in num_tokens:
            mean_rows = count * shape.choices / shape.experts
            fitting = [each.tiles for each in EXPERT_CANDIDATES if each.fits(mean_rows)]
            bf16, float8 = experts.works(count, fitting)
            ways = {"bf16": median_ms(bf16, 60) * 1e3}
            for tiles, work in zip(fitting, float8, strict=True):
                ways[brief(tiles)] = median_ms(work, 60) * 1e3
            print_ways(f"{shape.name} experts {count} tokens ({mean_rows:g} rows each)", ways)
        del experts


def print_ways(what: str, ways: dict[str, float]) -> None:
    """Print them, the fastest first, each with its speedup over bf16."""
    told = [
        f"    {us:9.1f} us {ways['bf16'] / us:5.2f} {name}"
        for name, us in sorted(ways.items(), key=lambda each: each[1])
    ]
    print("\n".join([what, *told]), flush=True)


@dataclass(frozen=True, kw_only=True)
class ProductBench:
    """A benchmark of products in one kind of weight: what its command does."""

    name: str
    description: str | None
    num_tokens: tuple[int, ...]
    measure: Callable[[], list[Figure]]
    tune_linear: Callable[[Sequence[int]], None]
    tune_experts: Callable[[Sequence[int]], None]
    config: Mapping[str, Any]

    def main(self) -> int:
        """Measure and report, or tune."""
        parser = make_parser(self.description)
        parser.add_argument("--tune", action="store_true", help="print candidates, and no record")
        parser.add_argument(
            "--tokens", default=None, help="numbers of tokens to tune for, by commas"
        )
        parser.add_argument("--only", choices=("linear", "experts"), help="tune these alone")
        add_results(parser, help="folder for the record")
        add_commit(parser)
        arguments = parser.parse_args()
        require_gpus(1)
        torch.manual_seed(0)

        if arguments.tune:
            chosen = arguments.tokens
            counts = self.num_tokens if chosen is None else tuple(map(int, chosen.split(",")))
            print(torch.cuda.get_device_name(), torch.__version__, flush=True)
            if arguments.only != "experts":
                self.tune_linear(counts)
            if arguments.only != "linear":
                self.tune_experts(counts)
            return 0

        config = {"gpu": torch.cuda.get_device_name(), "linear": LINEAR_SHAPES, **self.config}
        folder, commit = arguments.results, arguments.commit
        return report(self.name, config, self.measure(), keep_in=folder, at_commit=commit)


FP8 = ProductBench(
    name="fp8",
    description=__doc__,
    num_tokens=NUM_TOKENS,
    measure=lambda: measure_linear() + measure_experts(),
    tune_linear=tune_linear,
    tune_experts=tune_experts,
    config={},
)

if __name__ == "__main__":
    run(FP8.main)
