"""Measure copies of quantised pages between L1 and L2 against uncompressed ones in the same run.

    python -m benchmarks.codec_copy

The patterns of `page_copy`: dense_l16, 512 MiB of bf16 in random pages. Every figure is an
effective bandwidth, the pools' bytes per second. Beside it stands the faster of the two ways to
copy the same pages as they are. Also, without a bar: how much decode attention slows down beside
unending copies, and beside those of the same pages as they are.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.device.gpu_timing import median_ms, run_kernel_benchmark
from benchmarks.page_copy import (
    ARENA_BYTES,
    HEAD_DIM,
    HEADER_BYTES,
    KV_HEADS,
    LAYERS,
    PATTERNS,
    SHORT,
    Copies,
    DecodeStep,
    Pattern,
    register_arena,
    slowdown,
)
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.pages.copy_engine import MIN_PIECE_BYTES
from raydix.kernels.pages.page_codec import Codec, encoded_head_bytes
from raydix.kernels.pages.page_copy import (
    CopyDirection,
    CopySegment,
    PackedCopies,
    PagePairs,
    pack_copies,
)
from raydix.kernels.pages.quantised_copy import choose_num_ctas, copy_quantised_pages

MIN_RATIO = 1.8


class QuantisedCopies:
    """The pages of `Copies`, encoded in the arena."""

    def __init__(self, plain: Copies, codec: Codec) -> None:
        self.codec = codec
        self.arena = plain.arena
        self.total_bytes = plain.total_bytes
        launches = [[self._encoded(segment) for segment in launch] for launch in plain.launches]
        self.pool: Tensor = launches[0][0].pool
        self.packed: PackedCopies = pack_copies(launches)
        self.table = torch.from_numpy(self.packed.words).cuda()

    def run(self, direction: CopyDirection) -> None:
        """All launches, one after another."""
        for launch in self.packed.launches:
            copy_quantised_pages(self.table, launch, self.arena, direction, self.pool, self.codec)

    def gbps(self, direction: CopyDirection) -> float:
        """Gigabytes of the pools per second."""
        self.run(CopyDirection.TO_ARENA)
        return self.total_bytes / median_ms(lambda: self.run(direction)) / 1e6

    def _encoded(self, segment: CopySegment) -> CopySegment:
        page_size, head_dim = segment.pool.shape[-2:]
        head_bytes = encoded_head_bytes(page_size * head_dim)
        host_page_bytes = -(-(HEADER_BYTES + LAYERS * KV_HEADS * head_bytes) // 64) * 64
        num_pages = len(segment.pages.page_ids)

        host_pages = np.random.default_rng(1).permutation(
            min(ARENA_BYTES // host_page_bytes, 2 * num_pages)
        )[:num_pages]
        return replace(
            segment,
            pages=PagePairs(
                page_ids=segment.pages.page_ids,
                arena_offsets=host_pages * host_page_bytes + HEADER_BYTES,
            ),
            canonical_layer_bytes=KV_HEADS * head_bytes,
            rank_offset_bytes=3 * head_bytes if segment.rank_offset_bytes else 0,
            codec=self.codec,
        )


def plain_gbps(copies: Copies, direction: CopyDirection) -> tuple[float, str]:
    """The faster way to move the pages as they are, and its name."""
    ways = [(copies.gbps(copies.by_kernel, direction), "uncompressed, kernel")]
    if copies.piece_bytes >= MIN_PIECE_BYTES[CopyDirection.TO_POOL]:
        ways.append((copies.gbps(copies.by_engine, direction), "uncompressed, copy engine"))
    return max(ways)


def pattern_figures(pattern: Pattern, arena: Tensor) -> list[Figure]:
    """Effective bandwidths of one pattern."""
    copies, figures = Copies(pattern, arena), []
    encoded = {codec: QuantisedCopies(copies, codec) for codec in (Codec.INT8, Codec.FP8)}

    for direction in CopyDirection:
        baseline, baseline_name = plain_gbps(copies, direction)
        for codec, quantised in encoded.items():
            num_ctas = choose_num_ctas(direction, pattern.page_size * HEAD_DIM)
            figures.append(
                Figure(
                    name=f"{codec}, {SHORT[direction]}, page {pattern.page_size}, "
                    f"{pattern.name}, {num_ctas} CTAs",
                    value=quantised.gbps(direction),
                    unit="GB/s",
                    min_value=MIN_RATIO * baseline if codec is Codec.INT8 else None,
                    baseline=baseline,
                    baseline_name=baseline_name,
                )
            )
    return figures


def slowdown_figures(pattern: Pattern, arena: Tensor) -> list[Figure]:
    """How much int8 copies slow decode attention down."""
    copies, step, figures = Copies(pattern, arena), DecodeStep(), []
    quantised = QuantisedCopies(copies, Codec.INT8)

    for direction in CopyDirection:
        figures.append(
            Figure(
                name=f"decode attention beside int8, {SHORT[direction]}, "
                f"page {pattern.page_size}, times its own",
                value=slowdown(step, quantised.run, direction),
                unit="1",
                baseline=slowdown(step, copies.by_kernel, direction),
                baseline_name="uncompressed, kernel",
            )
        )
    return figures


def measure() -> list[Figure]:
    """All patterns, and the slowdown by whole pages of either size."""
    arena = register_arena()
    with torch.cuda.stream(torch.cuda.Stream()):
        figures = [figure for pattern in PATTERNS for figure in pattern_figures(pattern, arena)]
        for pattern in (PATTERNS[0], PATTERNS[3]):
            figures += slowdown_figures(pattern, arena)
    return figures


def main() -> int:
    """Measure and report."""
    config = {"model": "dense_l16", "dtype": "bfloat16", "min_ratio": MIN_RATIO}
    return run_kernel_benchmark("codec_copy", __doc__, config, measure)


if __name__ == "__main__":
    run(main)
