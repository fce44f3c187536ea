"""Measure an MoE layer against torch's grouped matrix product and against the hardware's floor.

    python -m benchmarks.moe_layer

In bf16 with random weights: Qwen3-30B-A3B's layer, from router logits to the summed output, and
one of two ranks' half of DeepSeek-V3's, from the rows that came to it, of which half of the choices
are elsewhere. The baseline gets its rows already sorted by expert and leaves out the sum over
choices: two products with SiLU-mul in between. The floor is the larger of weights touched / 4.2
TB/s and operations / 790 TFLOP/s. Both run as CUDA graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.device.gpu_timing import capture, median_ms, run_kernel_benchmark
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.moe.grouped_gemm import fused_experts
from raydix.kernels.moe.topk_gating import topk_gating

MIN_SPEEDUP = 1.1
MIN_FRACTION = 0.75
FEW_TOKENS = 64
"""Fewer are bound by latency, and have no bar."""
DEVICE_TBPS, DEVICE_TFLOPS = 4.2, 790
"""What an H200 reads and writes in a large copy, and does in a product of random bf16."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A layer, or a rank's part of one: `experts` of the `routed_experts` that tokens choose from.

    num_tokens: what is measured; within `with_bar` there is a bar.
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    routed_experts: int
    choices: int
    num_tokens: tuple[int, ...]
    with_bar: range

    @property
    def expert_elements(self) -> int:
        """The number of elements of one expert's weights."""
        return 3 * self.hidden * self.intermediate

    def figure_name(self, num_tokens: int) -> str:
        """Qwen3's figures have no prefix."""
        return f"{self.name}, {num_tokens} tokens" if self.name else f"{num_tokens} tokens"


QWEN3 = Shape(
    name="",
    hidden=2048,
    intermediate=768,
    experts=128,
    routed_experts=128,
    choices=8,
    num_tokens=(1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    with_bar=range(16, 16384 + 1),
)
DEEPSEEK_V3_HALF = Shape(
    name="half of DeepSeek-V3",
    hidden=7168,
    intermediate=2048,
    experts=128,
    routed_experts=256,
    choices=8,
    num_tokens=(16, 64, 256, 1024, 2048, 4096, 8192),
    with_bar=range(16, 4096 + 1),
)


class Layer:
    """Random weights of a shape, scaled so that products keep the size of what goes in."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.gate_up_EIC = self._weights(2 * shape.intermediate, shape.hidden)
        self.down_ECI = self._weights(shape.hidden, shape.intermediate)

    def _weights(self, rows: int, columns: int) -> Tensor:
        size = (self.shape.experts, rows, columns)
        empty = torch.empty(size, dtype=torch.bfloat16, device="cuda")
        return empty.normal_(std=columns**-0.5)

    def choose(self, logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's weights and experts; -1 for those that are elsewhere."""
        weights_TK, ids_TK = topk_gating(logits_TE, self.shape.choices, renormalise=True)
        if self.shape.experts < self.shape.routed_experts:
            ids_TK = torch.where(ids_TK < self.shape.experts, ids_TK, -1)
        return weights_TK, ids_TK

    def fused(self, x_TC: Tensor, logits_TE: Tensor) -> Callable[[], Tensor]:
        """What the engine runs; a part of a layer gets choices that its dispatcher has made."""
        made = self.choose(logits_TE)

        def work() -> Tensor:
            is_whole = self.shape.experts == self.shape.routed_experts
            chosen = self.choose(logits_TE) if is_whole else made
            weights = self.gate_up_EIC, self.down_ECI
            return fused_experts(x_TC, *weights, *chosen, form=SiluGlu(), biases=None)

        return work

    def baseline(self, x_TC: Tensor, ids_TK: Tensor) -> Callable[[], Tensor]:
        """The products over rows sorted beforehand."""
        ids_X = ids_TK.flatten()
        is_here_X = ids_X >= 0
        order_X = torch.where(is_here_X, ids_X, self.shape.experts).argsort(stable=True)
        x_XC = x_TC[order_X[: int(is_here_X.sum())] // self.shape.choices].contiguous()
        counts_E = ids_X[is_here_X].bincount(minlength=self.shape.experts)
        ends_E = counts_E.cumsum(0).to(torch.int32)
        gate_up_ECI, down_EIC = self.gate_up_EIC.transpose(1, 2), self.down_ECI.transpose(1, 2)

        def work() -> Tensor:
            gate_XI, up_XI = torch._grouped_mm(x_XC, gate_up_ECI, offs=ends_E).chunk(2, dim=-1)
            return torch._grouped_mm(functional.silu(gate_XI) * up_XI, down_EIC, offs=ends_E)

        return work

    def floor_ms(self, ids_TK: Tensor) -> float:
        """No layer of these choices is faster."""
        ids_X = ids_TK[ids_TK >= 0]
        bytes_ms = ids_X.unique().numel() * self.shape.expert_elements * 2 / DEVICE_TBPS / 1e9
        operations_ms = ids_X.numel() * self.shape.expert_elements * 2 / DEVICE_TFLOPS / 1e9
        return max(bytes_ms, operations_ms)


def measure_layer(layer: Layer, num_tokens: int) -> list[Figure]:
    """Figures of one number of tokens."""
    shape = layer.shape
    x_TC = torch.randn(num_tokens, shape.hidden, dtype=torch.bfloat16, device="cuda")
    logits_TE = torch.randn(num_tokens, shape.routed_experts, dtype=torch.bfloat16, device="cuda")
    _, ids_TK = layer.choose(logits_TE)

    layer_ms = median_ms(capture(layer.fused(x_TC, logits_TE)))
    baseline_ms = median_ms(capture(layer.baseline(x_TC, ids_TK)))
    name = shape.figure_name(num_tokens)
    min_speedup = MIN_SPEEDUP if num_tokens in shape.with_bar else None
    return [
        Figure(name=name, value=layer_ms * 1e3, unit="us"),
        Figure(name=f"{name}, grouped_mm", value=baseline_ms * 1e3, unit="us"),
        Figure(
            name=f"{name}, speedup", value=baseline_ms / layer_ms, unit="1", min_value=min_speedup
        ),
        Figure(
            name=f"{name}, fraction of the floor",
            value=layer.floor_ms(ids_TK) / layer_ms,
            unit="1",
            min_value=MIN_FRACTION if num_tokens >= FEW_TOKENS else None,
        ),
    ]


def measure() -> list[Figure]:
    """Measure both shapes, each with the same weights for all numbers of tokens."""
    figures = []
    for shape in (QWEN3, DEEPSEEK_V3_HALF):
        layer = Layer(shape)
        figures += [each for count in shape.num_tokens for each in measure_layer(layer, count)]
        del layer
    return figures


def main() -> int:
    """Measure and report."""
    config = {
        **{
            shape.name or "Qwen3-30B-A3B": {
                "hidden": shape.hidden,
                "intermediate": shape.intermediate,
                "experts": shape.experts,
                "routed_experts": shape.routed_experts,
                "experts_per_token": shape.choices,
            }
            for shape in (QWEN3, DEEPSEEK_V3_HALF)
        },
        "dtype": "bfloat16",
        "ceiling_tbps": DEVICE_TBPS,
        "ceiling_tflops": DEVICE_TFLOPS,
    }
    return run_kernel_benchmark("moe_layer", __doc__, config, measure)


if __name__ == "__main__":
    run(main)
