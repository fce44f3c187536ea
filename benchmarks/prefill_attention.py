"""Measure causal prefill attention over pages against torch's SDPA over contiguous keys.

    python -m benchmarks.prefill_attention

bf16, 32 query heads, 8 KV heads of 128 (SDPA gets its keys repeated for all 32), one row of 8,192
and of 32,768 tokens in random pages, at page sizes 16 and 64.
"""

import torch
from torch.nn import functional

from benchmarks.device.gpu_timing import median_ms, run_kernel_benchmark
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.paged_prefill import paged_prefill, tile_tokens
from raydix.kernels.attention.rows import PrefillRow, cut_rows

KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
CONTEXTS = (8192, 32_768)
MIN_FRACTION = 0.9


def tflops(context: int, time_ms: float) -> float:
    """Teraflops of one causal row: half of two products."""
    return 2 * context**2 * HEAD_DIM * KV_HEADS * GROUP / time_ms / 1e9


def sdpa_tflops(context: int) -> float:
    """Teraflops of torch's attention over contiguous tensors."""
    shape = (3, 1, KV_HEADS * GROUP, context, HEAD_DIM)
    q, k, v = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    return tflops(
        context, median_ms(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    )


def paged_tflops(context: int, page_size: int) -> float:
    """Teraflops of our kernel."""
    num_pages = context // page_size
    shape = (num_pages + 1, 1, KV_HEADS, 2, page_size, HEAD_DIM)
    pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    tables = (torch.randperm(num_pages, device="cuda") + 1).view(1, num_pages).int()
    q = torch.randn(context, KV_HEADS * GROUP, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)
    row = PrefillRow(row=0, first_token=0, num_tokens=context, context_tokens=context)
    tiles = torch.from_numpy(cut_rows([row], tile_tokens(q.dtype))).cuda()
    time_ms = median_ms(
        lambda: paged_prefill(
            q, pool, 0, tables, tiles, form=AttentionForm(scale=HEAD_DIM**-0.5), out_TQD=out
        )
    )
    return tflops(context, time_ms)


def measure() -> list[Figure]:
    """Measure both contexts, by SDPA and at both page sizes."""
    figures = []
    for context in CONTEXTS:
        baseline = sdpa_tflops(context)
        figures.append(Figure(name=f"SDPA, {context} tokens", value=baseline, unit="TFLOP/s"))

        for page_size in (16, 64):
            rate = paged_tflops(context, page_size)
            name = f"pages of {page_size}, {context} tokens"
            figures.append(Figure(name=name, value=rate, unit="TFLOP/s"))
            figures.append(
                Figure(
                    name=f"{name}, fraction of SDPA",
                    value=rate / baseline,
                    unit="1",
                    min_value=MIN_FRACTION,
                )
            )
    return figures


def main() -> int:
    """Measure and report."""
    config = {
        "query_heads": KV_HEADS * GROUP,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "bfloat16",
    }
    return run_kernel_benchmark("prefill_attention", __doc__, config, measure)


if __name__ == "__main__":
    run(main)
