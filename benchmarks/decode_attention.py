"""Measure decode attention over pages: bytes of KV per second against a copy on the device.

    python -m benchmarks.decode_attention

bf16, 64 rows with 8,192 tokens each in random pages. Keys and values of 8 heads of 128, read by 32
query heads, at page sizes 16 and 64; the same with sinks, with a soft cap, and with a window of
4,096 tokens in contexts of 8,192 and 32,768. Latents of 576 dims, read by 16, 32 and 128 heads.
"""

import torch
from torch import Tensor

from benchmarks.device.gpu_timing import median_ms, run_kernel_benchmark
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.attention.decode_tiles import DecodeTiles, choose_num_splits
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.latent_attention import choose_latent_splits, latent_decode
from raydix.kernels.attention.paged_decode import paged_decode

BATCH, CONTEXT, KV_HEADS, GROUP, HEAD_DIM = 64, 8192, 8, 4, 128
QUERY_HEADS = KV_HEADS * GROUP
WINDOW, LONG_CONTEXT = 4096, 32_768
LATENT_DIM, VALUE_DIM, LATENT_PAGE = 576, 512, 64
DEVICE_TBPS = 4.2
"""What an H200 reads and writes, together, in a large copy."""
DEVICE_TFLOPS = 790
"""What an H200 multiplies in a large product of bf16 matrices."""
MIN_FRACTION = 0.80
MIN_LATENT_FRACTION = 0.70
MIN_LATENT_FLOPS_FRACTION = 0.40
MAX_SLOWDOWN = 1.1


def copy_tbps() -> float:
    """Terabytes per second, read plus written, of a plain copy within the device."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / median_ms(lambda: target.copy_(source)) / 1e9


def attention_ms(page_size: int, context: int, form: AttentionForm) -> float:
    """Time of one step of all rows; pages behind the window are page 0."""
    tables = random_tables(context, page_size, form.window)
    shape = (int(tables.max()) + 1, 1, KV_HEADS, 2, page_size, HEAD_DIM)
    pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    q = torch.randn(BATCH, QUERY_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)

    tiles, visible = tiles_of(context), min(context, form.window or context)
    num_splits = choose_num_splits(BATCH, KV_HEADS, visible, num_multiprocessors())
    return median_ms(
        lambda: paged_decode(
            q, pool, 0, tables, tiles, form=form, num_splits=num_splits, out_TQD=out
        )
    )


def latent_ms(num_heads: int) -> float:
    """Time of one step of all rows over latents."""
    tables = random_tables(CONTEXT, LATENT_PAGE, None)
    shape = (int(tables.max()) + 1, 1, LATENT_PAGE, LATENT_DIM)
    pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    q = torch.randn(BATCH, num_heads, LATENT_DIM, dtype=torch.bfloat16, device="cuda")
    out = torch.empty(BATCH, num_heads, VALUE_DIM, dtype=torch.bfloat16, device="cuda")

    tiles, scale = tiles_of(CONTEXT), LATENT_DIM**-0.5
    num_splits = choose_latent_splits(BATCH, num_heads, CONTEXT, num_multiprocessors(), q.dtype)
    return median_ms(
        lambda: latent_decode(
            q, pool, 0, tables, tiles, scale=scale, num_splits=num_splits, out_TQV=out
        )
    )


def random_tables(context: int, page_size: int, window: int | None) -> Tensor:
    """Block tables of all rows; pages behind the window are page 0."""
    num_pages = context // page_size
    first_page = 0 if window is None else max(context - window, 0) // page_size
    num_held = num_pages - first_page
    tables = torch.zeros(BATCH, num_pages, dtype=torch.int32, device="cuda")
    held = torch.randperm(BATCH * num_held, device="cuda") + 1
    tables[:, first_page:] = held.view(BATCH, num_held)
    return tables


def tiles_of(context: int) -> DecodeTiles:
    """One token for each row."""
    rows = torch.arange(BATCH, device="cuda")
    return DecodeTiles(rows_B=rows, tokens_B=rows, context_tokens_B=torch.full_like(rows, context))


def num_multiprocessors() -> int:
    """The number of multiprocessors of the first GPU."""
    return torch.cuda.get_device_properties(0).multi_processor_count


def plain_figures(copied: float) -> list[Figure]:
    """All keys, at both page sizes."""
    num_bytes = BATCH * CONTEXT * KV_HEADS * 2 * HEAD_DIM * 2
    figures = []
    for page_size in (16, 64):
        time_ms = attention_ms(page_size, CONTEXT, AttentionForm(scale=HEAD_DIM**-0.5))
        rate = num_bytes / time_ms / 1e9
        name = f"attention, page {page_size}"
        figures += [
            Figure(name=name, value=rate, unit="TB/s", min_value=MIN_FRACTION * DEVICE_TBPS),
            Figure(name=f"{name}, fraction of the copy", value=rate / copied, unit="1"),
        ]
    return figures


def form_figures() -> list[Figure]:
    """What windows, sinks and soft caps cost, as ratios of times at page size 64."""
    scale = HEAD_DIM**-0.5
    sinks_Q = torch.randn(QUERY_HEADS, dtype=torch.bfloat16, device="cuda")
    window = AttentionForm(scale=scale, window=WINDOW)
    plain_ms = attention_ms(64, CONTEXT, AttentionForm(scale=scale))
    slowdowns = {
        "sinks, time over plain": attention_ms(
            64, CONTEXT, AttentionForm(scale=scale, sinks_Q=sinks_Q)
        )
        / plain_ms,
        "soft cap, time over plain": attention_ms(
            64, CONTEXT, AttentionForm(scale=scale, soft_cap=50.0)
        )
        / plain_ms,
        f"window of {WINDOW}, time at {LONG_CONTEXT} over that at {CONTEXT}": attention_ms(
            64, LONG_CONTEXT, window
        )
        / attention_ms(64, CONTEXT, window),
    }
    return [
        Figure(name=name, value=slowdown, unit="1", max_value=MAX_SLOWDOWN)
        for name, slowdown in slowdowns.items()
    ]


def latent_figures() -> list[Figure]:
    """Latents, each counted once however many heads read it."""
    num_bytes = BATCH * CONTEXT * LATENT_DIM * 2
    figures = []
    for num_heads in (16, 32):
        rate = num_bytes / latent_ms(num_heads) / 1e9
        bar = MIN_LATENT_FRACTION * DEVICE_TBPS
        name = f"latents, {num_heads} heads"
        figures.append(Figure(name=name, value=rate, unit="TB/s", min_value=bar))

    num_flops = 2 * BATCH * CONTEXT * 128 * (LATENT_DIM + VALUE_DIM)
    rate = num_flops / latent_ms(128) / 1e9
    bar = MIN_LATENT_FLOPS_FRACTION * DEVICE_TFLOPS
    return [
        *figures,
        Figure(name="latents, 128 heads", value=rate, unit="TFLOP/s", min_value=bar),
    ]


def measure() -> list[Figure]:
    """The plain copy, and attention."""
    copied = copy_tbps()
    copy = Figure(name="copy within the device", value=copied, unit="TB/s")
    return [copy, *plain_figures(copied), *form_figures(), *latent_figures()]


def main() -> int:
    """Measure and report."""
    config = {
        "batch": BATCH,
        "context_tokens": CONTEXT,
        "query_heads": QUERY_HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "latent_dim": LATENT_DIM,
        "latent_value_dim": VALUE_DIM,
        "dtype": "bfloat16",
        "ceiling_tbps": DEVICE_TBPS,
        "ceiling_tflops": DEVICE_TFLOPS,
    }
    return run_kernel_benchmark("decode_attention", __doc__, config, measure)


if __name__ == "__main__":
    run(main)
