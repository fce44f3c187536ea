"""Measure decode attention over pages: bytes of KV per second against a copy on the device.

    python -m benchmarks.decode_attention

bf16, 32 query heads, 8 KV heads of 128, 64 rows with 8,192 tokens each in random pages, at page
sizes 16 and 64.
"""

import sys

import torch

from benchmarks.gpu_timing import median_ms, run_kernel_benchmark
from benchmarks.record import Figure
from raydix.kernels.attention_form import AttentionForm
from raydix.kernels.paged_decode import DecodeTiles, choose_num_splits, paged_decode

BATCH, CONTEXT, KV_HEADS, GROUP, HEAD_DIM = 64, 8192, 8, 4, 128
DEVICE_TBPS = 4.2
"""What an H200 reads and writes, together, in a large copy."""
MIN_FRACTION = 0.80


def copy_tbps() -> float:
    """Terabytes per second, read plus written, of a plain copy within the device."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / median_ms(lambda: target.copy_(source)) / 1e9


def attention_tbps(page_size: int) -> float:
    """Terabytes of keys and values per second."""
    num_pages = CONTEXT // page_size
    shape = (BATCH * num_pages + 1, 1, KV_HEADS, 2, page_size, HEAD_DIM)
    pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    tables = (torch.randperm(BATCH * num_pages, device="cuda") + 1).view(BATCH, num_pages).int()
    q = torch.randn(BATCH, KV_HEADS * GROUP, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)

    rows = torch.arange(BATCH, device="cuda")
    tiles = DecodeTiles(rows_B=rows, tokens_B=rows, context_tokens_B=torch.full_like(rows, CONTEXT))
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    num_splits = choose_num_splits(BATCH, KV_HEADS, CONTEXT, num_sms)

    time_ms = median_ms(
        lambda: paged_decode(
            q,
            pool,
            0,
            tables,
            tiles,
            form=AttentionForm(scale=HEAD_DIM**-0.5),
            num_splits=num_splits,
            out_TQD=out,
        )
    )
    return pool[1:].numel() * pool.element_size() / time_ms / 1e9


def measure() -> list[Figure]:
    """The plain copy, and attention at both page sizes."""
    copied = copy_tbps()
    figures = [Figure(name="copy within the device", value=copied, unit="TB/s")]
    for page_size in (16, 64):
        rate = attention_tbps(page_size)
        name = f"attention, page {page_size}"
        figures += [
            Figure(name=name, value=rate, unit="TB/s", min_value=MIN_FRACTION * DEVICE_TBPS),
            Figure(name=f"{name}, fraction of the copy", value=rate / copied, unit="1"),
        ]
    return figures


def main() -> int:
    """Measure and report."""
    config = {
        "batch": BATCH,
        "context_tokens": CONTEXT,
        "query_heads": KV_HEADS * GROUP,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "bfloat16",
        "ceiling_tbps": DEVICE_TBPS,
    }
    return run_kernel_benchmark("decode_attention", __doc__, config, measure)


if __name__ == "__main__":
    sys.exit(main())
