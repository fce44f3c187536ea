"""Measure attention over pages of FP8 against the same over pages of bf16: time over time.

    python -m benchmarks.fp8_kv

8 KV heads of 128, read by 32 query heads in bf16, contexts of 32,768 tokens in random pages. One
new token for each of 64, 16 and 1 rows, at page sizes 16 and 64; the same with sinks; and 2,048 new
tokens of one row at the end of its context. Scales are those of a checkpoint.
"""

import torch
from torch import Tensor

from benchmarks.device.gpu_timing import median_ms, run_kernel_benchmark
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.attention.decode_tiles import DecodeTiles, choose_num_splits
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.paged_decode import PROGRAMS_PER_SM, paged_decode
from raydix.kernels.attention.paged_prefill import paged_prefill, tile_tokens
from raydix.kernels.attention.rows import PrefillRow, cut_rows
from raydix.kernels.kv_cache.fp8 import FP8

CONTEXT, KV_HEADS, GROUP, HEAD_DIM = 32_768, 8, 4, 128
QUERY_HEADS = KV_HEADS * GROUP
CHUNK = 2048
MAX_FRACTION = 0.6
BARRED_ROWS = (64, 16)
"""Rows enough for the memory to bound the time; of a single one, part of it is in a cache."""


class Rows:
    """Rows over pages in random order, with room for the new tokens of one step."""

    def __init__(self, num_rows: int, num_tokens: int, page_size: int, dtype: torch.dtype) -> None:
        num_pages = CONTEXT // page_size
        order = torch.randperm(num_rows * num_pages, device="cuda") + 1
        self.tables_RN = order.view(num_rows, num_pages).int()
        shape = (num_rows * num_pages + 1, 1, KV_HEADS, 2, page_size, HEAD_DIM)
        self.pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda").to(dtype)
        self.q_TQD = torch.randn(
            num_tokens, QUERY_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda"
        )
        self.out_TQD = torch.empty_like(self.q_TQD)


def make_form(sinks_Q: Tensor | None = None) -> AttentionForm:
    """The form of all layers here; scales are of FP8 alone."""
    scales = torch.full((2, KV_HEADS), 0.5, device="cuda")
    return AttentionForm(scale=HEAD_DIM**-0.5, sinks_Q=sinks_Q, kv_scales_2H=scales)


def decode_ms(num_rows: int, page_size: int, dtype: torch.dtype, form: AttentionForm) -> float:
    """Time of one new token for each row."""
    rows = Rows(num_rows, num_rows, page_size, dtype)
    index = torch.arange(num_rows, device="cuda")
    contexts = torch.full_like(index, CONTEXT)
    tiles = DecodeTiles(rows_B=index, tokens_B=index, context_tokens_B=contexts)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    num_splits = choose_num_splits(num_rows, KV_HEADS, CONTEXT, num_sms, PROGRAMS_PER_SM)
    return median_ms(
        lambda: paged_decode(
            rows.q_TQD,
            rows.pool,
            0,
            rows.tables_RN,
            tiles,
            form=form,
            num_splits=num_splits,
            out_TQD=rows.out_TQD,
        )
    )


def chunk_ms(page_size: int, dtype: torch.dtype) -> float:
    """Time of the last tokens of a long prompt."""
    rows = Rows(1, CHUNK, page_size, dtype)
    row = PrefillRow(row=0, first_token=0, num_tokens=CHUNK, context_tokens=CONTEXT)
    tiles = torch.from_numpy(cut_rows([row], tile_tokens(rows.q_TQD.dtype))).cuda()
    form = make_form()
    return median_ms(
        lambda: paged_prefill(
            rows.q_TQD, rows.pool, 0, rows.tables_RN, tiles, form=form, out_TQD=rows.out_TQD
        )
    )


def decode_figures() -> list[Figure]:
    """One token for each row."""
    figures = []
    for page_size in (16, 64):
        for num_rows in (*BARRED_ROWS, 1):
            both = [
                decode_ms(num_rows, page_size, dtype, make_form())
                for dtype in (FP8, torch.bfloat16)
            ]
            bar = MAX_FRACTION if num_rows in BARRED_ROWS else None
            name = f"{num_rows} rows, pages of {page_size}, time over that in bf16"
            figures.append(Figure(name=name, value=both[0] / both[1], unit="1", max_value=bar))
            if num_rows == BARRED_ROWS[0]:
                rate = num_rows * CONTEXT * KV_HEADS * 2 * HEAD_DIM / both[0] / 1e9
                name = f"{num_rows} rows, pages of {page_size}, FP8"
                figures.append(Figure(name=name, value=rate, unit="TB/s"))
    return figures


def measure() -> list[Figure]:
    """Measure steps of decodes, with and without sinks, and of a prompt."""
    sinks = make_form(torch.randn(QUERY_HEADS, dtype=torch.bfloat16, device="cuda"))
    with_sinks = [decode_ms(BARRED_ROWS[1], 64, dtype, sinks) for dtype in (FP8, torch.bfloat16)]
    chunks = [chunk_ms(64, dtype) for dtype in (FP8, torch.bfloat16)]
    return [
        *decode_figures(),
        Figure(
            name=f"{BARRED_ROWS[1]} rows with sinks, time over that in bf16",
            value=with_sinks[0] / with_sinks[1],
            unit="1",
        ),
        Figure(
            name=f"{CHUNK} tokens of a prompt, time over that in bf16",
            value=chunks[0] / chunks[1],
            unit="1",
        ),
    ]


def main() -> int:
    """Measure and report."""
    config = {
        "context_tokens": CONTEXT,
        "query_heads": QUERY_HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "stored": "float8_e4m3fn",
    }
    return run_kernel_benchmark("fp8_kv", __doc__, config, measure)


if __name__ == "__main__":
    run(main)
