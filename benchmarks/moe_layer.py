"""Measure an MoE layer against torch's grouped matrix product and against the hardware's floor.

    python -m benchmarks.moe_layer

Qwen3-30B-A3B's shape in bf16: hidden 2048, 128 experts of 768, 8 per token, random weights and
router logits. The layer runs from router logits to the summed output. The baseline gets its rows
already sorted by expert and leaves out the sum over choices: two products with SiLU-mul in between.
The floor is the larger of weights touched / 4.2 TB/s and operations / 790 TFLOP/s. Both run as CUDA
graphs.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import capture, median_ms, run_kernel_benchmark
from benchmarks.record import Figure
from raydix.kernels.glu_form import SiluGlu
from raydix.kernels.grouped_gemm import fused_experts
from raydix.kernels.topk_gating import topk_gating

HIDDEN, INTERMEDIATE, EXPERTS, CHOICES = 2048, 768, 128, 8
NUM_TOKENS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FIRST_WITH_BAR = 16
MIN_SPEEDUP = 1.1
DEVICE_TBPS, DEVICE_TFLOPS = 4.2, 790
"""What an H200 reads and writes in a large copy, and does in a product of random bf16."""


def baseline(
    x_TC: Tensor, gate_up_EIC: Tensor, down_ECI: Tensor, expert_ids_TK: Tensor
) -> Callable[[], Tensor]:
    """The products over rows sorted beforehand."""
    order_X = expert_ids_TK.flatten().argsort(stable=True)
    x_XC = x_TC[order_X // CHOICES].contiguous()
    ends_E = expert_ids_TK.flatten().bincount(minlength=EXPERTS).cumsum(0).to(torch.int32)
    gate_up_ECI, down_EIC = gate_up_EIC.transpose(1, 2), down_ECI.transpose(1, 2)

    def work() -> Tensor:
        gate_XI, up_XI = torch._grouped_mm(x_XC, gate_up_ECI, offs=ends_E).chunk(2, dim=-1)
        return torch._grouped_mm(functional.silu(gate_XI) * up_XI, down_EIC, offs=ends_E)

    return work


def floor_ms(expert_ids_TK: Tensor) -> float:
    """No layer of these choices is faster."""
    expert_elements = 3 * HIDDEN * INTERMEDIATE
    bytes_ms = expert_ids_TK.unique().numel() * expert_elements * 2 / DEVICE_TBPS / 1e9
    operations_ms = expert_ids_TK.numel() * expert_elements * 2 / DEVICE_TFLOPS / 1e9
    return max(bytes_ms, operations_ms)


def measure_layer(num_tokens: int, gate_up_EIC: Tensor, down_ECI: Tensor) -> list[Figure]:
    """Figures of one number of tokens."""
    x_TC = torch.randn(num_tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
    logits_TE = torch.randn(num_tokens, EXPERTS, dtype=torch.bfloat16, device="cuda")

    def layer() -> Tensor:
        return fused_experts(
            x_TC,
            gate_up_EIC,
            down_ECI,
            *topk_gating(logits_TE, CHOICES, renormalise=True),
            form=SiluGlu(),
            biases=None,
        )

    _, expert_ids_TK = topk_gating(logits_TE, CHOICES, renormalise=True)
    layer_ms = median_ms(capture(layer))
    baseline_ms = median_ms(capture(baseline(x_TC, gate_up_EIC, down_ECI, expert_ids_TK)))
    name = f"{num_tokens} tokens"
    min_speedup = MIN_SPEEDUP if num_tokens >= FIRST_WITH_BAR else None
    return [
        Figure(name=name, value=layer_ms * 1e3, unit="us"),
        Figure(name=f"{name}, grouped_mm", value=baseline_ms * 1e3, unit="us"),
        Figure(
            name=f"{name}, speedup", value=baseline_ms / layer_ms, unit="1", min_value=min_speedup
        ),
        Figure(
            name=f"{name}, fraction of the floor",
            value=floor_ms(expert_ids_TK) / layer_ms,
            unit="1",
        ),
    ]


def measure() -> list[Figure]:
    """All numbers of tokens, with the same weights."""

    def weights(rows: int, columns: int) -> Tensor:
        """Of all experts; scaled so that products keep the size of what goes in."""
        shape = (EXPERTS, rows, columns)
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda") * columns**-0.5

    gate_up_EIC, down_ECI = weights(2 * INTERMEDIATE, HIDDEN), weights(HIDDEN, INTERMEDIATE)
    return [
        figure for count in NUM_TOKENS for figure in measure_layer(count, gate_up_EIC, down_ECI)
    ]


def main() -> int:
    """Measure and report."""
    config = {
        "hidden": HIDDEN,
        "intermediate": INTERMEDIATE,
        "experts": EXPERTS,
        "experts_per_token": CHOICES,
        "dtype": "bfloat16",
        "ceiling_tbps": DEVICE_TBPS,
        "ceiling_tflops": DEVICE_TFLOPS,
    }
    return run_kernel_benchmark("moe_layer", __doc__, config, measure)


if __name__ == "__main__":
    sys.exit(main())
