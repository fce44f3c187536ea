"""Measure page copies between L1 and L2 as serving makes them, against one contiguous copy.

    python -m benchmarks.page_copy

dense_l16: 16 layers, 8 KV heads of 128, bf16. 512 MiB in random pages of a registered arena, whole
pages in one launch, one launch per layer or two, and one head of each layer (tensor parallelism 8),
by the kernel; large pieces also by the copy engine in one call. Also, without a bar: how much
decode attention slows down beside unending copies.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchmarks.device.gpu_timing import median_ms, run_kernel_benchmark
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.attention.decode_tiles import DecodeTiles
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.paged_decode import paged_decode
from raydix.kernels.pages.copy_engine import MIN_PIECE_BYTES, CopyEngine
from raydix.kernels.pages.page_copy import (
    CopyDirection,
    CopySegment,
    PackedCopies,
    PagePairs,
    choose_num_ctas,
    copy_pages,
    pack_copies,
    piece_places,
)

LAYERS, KV_HEADS, HEAD_DIM, ELEMENT_BYTES = 16, 8, 128, 2
HEADER_BYTES = 64
TOTAL_BYTES = 512 << 20
ARENA_BYTES = 1 << 30
CUDA_HOST_REGISTER_PORTABLE = 1
MIN_FRACTION, MIN_FRACTION_LARGE = 0.91, 0.95
LARGE_PIECE_BYTES = 1 << 20
SHORT = {CopyDirection.TO_POOL: "H2D", CopyDirection.TO_ARENA: "D2H"}


def register_arena() -> Tensor:
    """Map, fill and register memory as the host arena does."""
    arena = torch.frombuffer(mmap.mmap(-1, ARENA_BYTES), dtype=torch.uint8).random_()
    status = int(
        torch.cuda.cudart().cudaHostRegister(
            arena.data_ptr(), arena.numel(), CUDA_HOST_REGISTER_PORTABLE
        )
    )
    if status:
        raise RuntimeError(f"cudaHostRegister returned {status}")
    return arena


def contiguous_gbps(arena: Tensor, direction: CopyDirection) -> float:
    """One plain copy of the same size."""
    host, device = (
        arena[:TOTAL_BYTES],
        torch.empty(TOTAL_BYTES, dtype=torch.uint8, device="cuda").random_(),
    )
    target, source = (device, host) if direction is CopyDirection.TO_POOL else (host, device)
    return TOTAL_BYTES / median_ms(lambda: target.copy_(source, non_blocking=True)) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Which parts of the pages a launch moves."""

    name: str
    page_size: int
    heads: int
    layers_per_launch: int

    def segments(self) -> list[list[CopySegment]]:
        """512 MiB of random pages, or of a rank's part of them."""
        head_bytes = 2 * self.page_size * HEAD_DIM * ELEMENT_BYTES
        canonical_layer_bytes = KV_HEADS * head_bytes
        host_page_bytes = HEADER_BYTES + LAYERS * canonical_layer_bytes

        num_pages = min(
            TOTAL_BYTES // (LAYERS * self.heads * head_bytes), ARENA_BYTES // host_page_bytes
        )

        random = np.random.default_rng(0)
        host_pages = random.permutation(ARENA_BYTES // host_page_bytes)[:num_pages]
        shape = (num_pages + 1, LAYERS, self.heads, 2, self.page_size, HEAD_DIM)
        pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        pages = PagePairs(
            page_ids=(random.permutation(num_pages) + 1).astype(np.int32),
            arena_offsets=host_pages * host_page_bytes + HEADER_BYTES,
        )
        return [
            [
                CopySegment(
                    pool=pool,
                    pages=pages,
                    first_layer=first_layer,
                    num_layers=self.layers_per_launch,
                    canonical_layer_bytes=canonical_layer_bytes,
                    rank_offset_bytes=0 if self.heads == KV_HEADS else 3 * head_bytes,
                )
            ]
            for first_layer in range(0, LAYERS, self.layers_per_launch)
        ]


PATTERNS = tuple(
    Pattern(name=name, page_size=page_size, heads=heads, layers_per_launch=layers)
    for page_size in (16, 64)
    for name, heads, layers in (
        ("whole pages", 8, 16),
        ("layer by layer", 8, 1),
        ("two layers", 8, 2),
        ("one head of 8", 1, 16),
    )
)


class Copies:
    """One pattern, packed and on the device."""

    def __init__(self, pattern: Pattern, arena: Tensor) -> None:
        self.pattern = pattern
        self.arena = arena
        self.engine = CopyEngine()
        self.launches = pattern.segments()
        self.packed: PackedCopies = pack_copies(self.launches)
        self.table = torch.from_numpy(self.packed.words).cuda()
        places = [piece_places(segment) for launch in self.launches for segment in launch]
        self.piece_bytes = places[0][2]
        self.total_bytes = sum(len(in_pool) * piece_bytes for in_pool, _, piece_bytes in places)

    def by_kernel(self, direction: CopyDirection) -> None:
        """All launches, one after another."""
        for launch in self.packed.launches:
            copy_pages(self.table, launch, self.arena, direction)

    def by_engine(self, direction: CopyDirection) -> None:
        """One call of the copy engine per launch."""
        for launch in self.launches:
            self.engine.copy_pages(launch, self.arena, direction)

    def gbps(self, enqueue: Callable[[CopyDirection], None], direction: CopyDirection) -> float:
        """Gigabytes per second of one of the two."""
        return self.total_bytes / median_ms(lambda: enqueue(direction)) / 1e6


def pattern_figures(copies: Copies, baselines: dict[CopyDirection, float]) -> list[Figure]:
    """Fractions of the contiguous copy, by the kernel and by the copy engine."""
    pattern, figures = copies.pattern, []
    is_large = copies.piece_bytes >= LARGE_PIECE_BYTES
    for direction, baseline in baselines.items():
        name = (
            f"{SHORT[direction]}, page {pattern.page_size}, {pattern.name} "
            f"({copies.piece_bytes >> 10} KiB)"
        )
        num_ctas = choose_num_ctas(direction, copies.piece_bytes)
        value = copies.gbps(copies.by_kernel, direction) / baseline
        # The bar holds for the way that serves: from 1 MiB on, the copy engine.
        bar = None if is_large else MIN_FRACTION
        figures.append(
            Figure(name=f"{name}, {num_ctas} CTAs", value=value, unit="1", min_value=bar)
        )
        if copies.piece_bytes >= MIN_PIECE_BYTES[direction]:
            value = copies.gbps(copies.by_engine, direction) / baseline
            bar = MIN_FRACTION_LARGE if is_large else MIN_FRACTION
            figures.append(
                Figure(name=f"{name}, copy engine", value=value, unit="1", min_value=bar)
            )
    return figures


class DecodeStep:
    """Decode attention of 64 rows with 4,096 tokens, 20 times over."""

    def __init__(self) -> None:
        batch, context, page_size = 64, 4096, 64
        num_pages = batch * context // page_size
        shape = (num_pages + 1, 1, KV_HEADS, 2, page_size, HEAD_DIM)
        self.pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        self.tables = (torch.randperm(num_pages, device="cuda") + 1).view(batch, -1).int()
        self.q = torch.randn(batch, 4 * KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        self.out, rows = torch.empty_like(self.q), torch.arange(batch, device="cuda")
        self.tiles = DecodeTiles(
            rows_B=rows, tokens_B=rows, context_tokens_B=torch.full_like(rows, context)
        )

    def run_ms(self) -> float:
        """Enqueue, wait, return the time on the device."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        start.record()
        for _ in range(20):
            paged_decode(
                self.q,
                self.pool,
                0,
                self.tables,
                self.tiles,
                form=AttentionForm(scale=HEAD_DIM**-0.5),
                num_splits=1,
                out_TQD=self.out,
            )
        stop.record()

        torch.cuda.synchronize()
        return float(start.elapsed_time(stop))


def slowdown(
    step: DecodeStep, enqueue: Callable[[CopyDirection], None], direction: CopyDirection
) -> float:
    """Time of the step beside copies, over its own time."""
    side = torch.cuda.Stream()

    def beside_ms() -> float:
        with torch.cuda.stream(side):
            for _ in range(3):
                enqueue(direction)
        return step.run_ms()

    beside_ms()
    alone = median(step.run_ms() for _ in range(9))
    return median(beside_ms() for _ in range(9)) / alone


def measure() -> list[Figure]:
    """The contiguous copies, all patterns, and the slowdown of decode attention."""
    arena = register_arena()
    with torch.cuda.stream(torch.cuda.Stream()):
        baselines = {direction: contiguous_gbps(arena, direction) for direction in CopyDirection}
        figures = [
            Figure(name=f"{SHORT[direction]}, contiguous", value=value, unit="GB/s")
            for direction, value in baselines.items()
        ]
        for pattern in PATTERNS:
            figures += pattern_figures(Copies(pattern, arena), baselines)

        step, copies = DecodeStep(), Copies(PATTERNS[5], arena)
        for direction in CopyDirection:
            for way, enqueue in (("kernel", copies.by_kernel), ("copy engine", copies.by_engine)):
                name = (
                    f"decode attention beside {SHORT[direction]} copies of 256 KiB pieces by the "
                    f"{way}, times its own"
                )
                figures.append(
                    Figure(name=name, value=slowdown(step, enqueue, direction), unit="1")
                )
    return figures


def main() -> int:
    """Measure and report."""
    config = {
        "layers": LAYERS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "bfloat16",
        "total_mib": TOTAL_BYTES >> 20,
        "arena_mib": ARENA_BYTES >> 20,
    }
    return run_kernel_benchmark("page_copy", __doc__, config, measure)


if __name__ == "__main__":
    run(main)
