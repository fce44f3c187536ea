"""Compile the variants of two small kernels by two processes; say how many were there before.

python -m tests.kernels.compile_few
"""

import sys

import torch

from raydix.kernels.compiling.processes import Compilers
from raydix.kernels.compiling.variants import agree_on_keys, compiling_for, trace
from raydix.kernels.dense.norm import rms_norm
from raydix.kernels.device.gpu import META
from raydix.kernels.sampling.columns import SamplingColumns
from raydix.kernels.sampling.sampler import sample_whole
from tests.kernels.traced_steps import HOPPER


def launch() -> None:
    """Norms of bf16 and float32, with and without a residual, and a sampler of two kernels."""
    for dtype in (torch.bfloat16, torch.float32):
        x_TC = torch.empty((7, 256), dtype=dtype, device=META)
        weight_C = torch.empty(256, dtype=dtype, device=META)
        rms_norm(x_TC, weight_C, 1e-6)
        rms_norm(x_TC, weight_C, 1e-6, residual_TC=x_TC)
    long = torch.empty(7, dtype=torch.int64, device=META)
    double = torch.empty(7, dtype=torch.float64, device=META)
    columns = SamplingColumns(
        noise_keys_R=long, temperatures_R=double, top_ks_R=long, top_ps_R=double, min_ps_R=double
    )
    sample_whole(torch.empty((7, 1000), dtype=torch.bfloat16, device=META), columns)


def main() -> int:
    """Compile them, in an order that no other process need have."""
    agree_on_keys()
    with compiling_for(HOPPER):
        variants = trace(launch)
        with Compilers(2, lambda: None) as compilers:
            compiled = compilers.finish(variants[::-1])
    print(sum(each.was_there for each in compiled), "of", len(variants), "were there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
