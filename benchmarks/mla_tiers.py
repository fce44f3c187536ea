"""Measure what latent pages cost in L2 when ranks divide their copies, against one copy a rank.

    python -m benchmarks.mla_tiers --ranks 2

The pages are those of DeepSeek-V3's attention: 61 layers, 512 latent and 64 rope values a token,
bf16. It works at the level of transfer engines, which is where the difference lies: one process and
one GPU a rank, one arena for all of them, the very engines and pools of a serving rank, no model.

- shared: the arena holds a page once. Of a prefix each rank copies a share, which it pushes into
  its peers' pools; the prefix is loaded once every layer has come to every rank, bytes compared.
- replicated, in the same run and by turns with it: every rank has its own copy of each page in the
  arena, and loads and backs up all of it by itself.

Times are from the moment when all ranks begin to that at which the last one reports its load; the
time until the first layers may be used is measured on the device by who waits for them. A rank's
backup bytes are those that the arena gains when this rank alone backs the prefix up.
"""

import argparse
import multiprocessing
import statistics
import tempfile
from pathlib import Path

import torch

from benchmarks.device.gpus import require_gpus
from benchmarks.device.latent_ranks import TIMEOUT_S, Loads, Task, run_rank
from benchmarks.records.command_line import add_commit, add_results, count, make_parser, run
from benchmarks.records.record import Figure, name_with_ranks, report
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.tiers.host_arena import HostArena

PAGE_SIZE = 64
NUM_LAYERS, LATENT_DIM, ROPE_DIM = 61, 512, 64
MIN_SPEED_UP, MIN_SPEED_UP_PER_RANK = {2: 1.4}, 0.6
"""The least speed-up by ranks; and of each where there are more."""


def figures_of(ranks: list[dict[str, Loads]], layout: KvLayout, num_pages: int) -> list[Figure]:
    """What all ranks together have measured."""
    num_ranks, num_tokens = len(ranks), num_pages * layout.page_size
    prefix_bytes = num_pages * layout.payload_bytes(0)
    host_bytes = {
        name: sum(rank[name].backup_bytes for rank in ranks) for name in ("shared", "replicated")
    }
    load_s = {name: _load_s([rank[name] for rank in ranks]) for name in host_bytes}
    first_s = {
        name: statistics.median(max(times) for times in _columns(ranks, name))
        for name in host_bytes
    }
    backup_bytes = max(rank["shared"].backup_bytes for rank in ranks)

    return [
        *_host_figures(host_bytes, num_ranks, num_tokens),
        Figure(
            name="backup bytes of a rank, of all bytes of the prefix",
            value=backup_bytes / prefix_bytes,
            unit="1",
            max_value=-(-num_pages // num_ranks) / num_pages,
            baseline=ranks[0]["replicated"].backup_bytes / prefix_bytes,
            baseline_name="replicated",
        ),
        Figure(
            name="prefix loads, times as fast as replicated",
            value=load_s["replicated"] / load_s["shared"],
            unit="1",
            min_value=MIN_SPEED_UP.get(num_ranks, MIN_SPEED_UP_PER_RANK * num_ranks),
        ),
        Figure(
            name="load of the prefix",
            value=load_s["shared"] * 1e3,
            unit="ms",
            baseline=load_s["replicated"] * 1e3,
            baseline_name="replicated",
        ),
        Figure(
            name="until the first layer may be used",
            value=first_s["shared"] * 1e3,
            unit="ms",
            baseline=first_s["replicated"] * 1e3,
            baseline_name="replicated",
        ),
        Figure(
            name="bytes that a rank loads itself, of all bytes of the prefix",
            value=max(rank["shared"].loaded_bytes for rank in ranks) / prefix_bytes,
            unit="1",
        ),
    ]


def _host_figures(host_bytes: dict[str, int], num_ranks: int, num_tokens: int) -> list[Figure]:
    return [
        Figure(
            name="bytes in L2 per token, replicated over shared",
            value=host_bytes["replicated"] / host_bytes["shared"],
            unit="1",
            min_value=num_ranks,
            max_value=num_ranks,
        ),
        Figure(
            name="bytes in L2 per token",
            value=host_bytes["shared"] / num_tokens,
            unit="B",
            baseline=host_bytes["replicated"] / num_tokens,
            baseline_name="replicated",
        ),
    ]


def _load_s(ranks: list[Loads]) -> float:
    """The median over the repeats: from the first rank's beginning to the last one's end."""
    spans = [
        max(rank.ended_s[index] for rank in ranks) - min(rank.begun_s[index] for rank in ranks)
        for index in range(len(ranks[0].begun_s))
    ]
    return statistics.median(spans)


def _columns(ranks: list[dict[str, Loads]], name: str) -> list[tuple[float, ...]]:
    return list(zip(*(rank[name].first_layer_s for rank in ranks), strict=True))


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Start a process a rank, and put together what they find."""
    layout = KvLayout(
        page_size=PAGE_SIZE,
        dtype="bfloat16",
        dtype_bytes=2,
        groups=(
            KvGroup(
                kind=GroupKind.LATENT,
                layers=tuple(range(NUM_LAYERS)),
                num_kv_heads=1,
                head_dim=LATENT_DIM + ROPE_DIM,
            ),
        ),
    )
    num_pages = arguments.tokens // PAGE_SIZE
    arena_bytes = (arguments.ranks + 2) * num_pages * layout.host_page_bytes(0) + (64 << 20)
    arena = HostArena.create(layout, arena_bytes, num_threads=8)
    if arena.geometry.slab_pages(0) != arena.geometry.pages_per_slab:
        raise AssertionError("pages of the only group fill their slabs: ids have no gaps")

    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(arguments.ranks), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=run_rank,
                args=(
                    Task(
                        rank=rank,
                        num_ranks=arguments.ranks,
                        device=arguments.device,
                        layout=layout,
                        num_pages=num_pages,
                        repeats=arguments.repeats,
                        arena=arena.location,
                        file=Path(folder) / "meeting",
                    ),
                    barrier,
                    results,
                ),
            )
            for rank in range(arguments.ranks)
        ]
        for process in processes:
            process.start()
        found = dict(results.get(timeout=2 * TIMEOUT_S) for _ in processes)
        for process in processes:
            process.join()

    for rank, result in found.items():
        if isinstance(result, BaseException):
            raise RuntimeError(f"rank {rank} failed") from result
    return figures_of([found[rank] for rank in range(arguments.ranks)], layout, num_pages)


def main() -> int:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=count, default=2, help="processes, each with its GPU")
    parser.add_argument("--tokens", type=count, default=16384, help="of the prefix")
    parser.add_argument("--repeats", type=count, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    add_results(parser, "folder for the record", default=None)
    add_commit(parser)
    arguments = parser.parse_args()
    if arguments.tokens % PAGE_SIZE:
        parser.error(f"--tokens is {arguments.tokens}; expected a multiple of {PAGE_SIZE}")
    if arguments.device == "cuda":
        require_gpus(arguments.ranks)

    config = {
        "attention": "DeepSeek-V3, 61 layers",
        "ranks": arguments.ranks,
        "tokens": arguments.tokens,
        "page_size": PAGE_SIZE,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
    }
    figures = measure(arguments)
    name = name_with_ranks("mla_tiers", arguments.ranks)
    return report(name, config, figures, keep_in=arguments.results, at_commit=arguments.commit)


if __name__ == "__main__":
    run(main)
