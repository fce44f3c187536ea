"""Times to the first token of long contexts that another engine's L2 holds, and of new ones.

    python -m benchmarks.pull_engines                         # two GPUs, an engine on each
    python -m benchmarks.pull_engines --ranks 4               # two GPUs for each engine
    python -m benchmarks.pull_engines --gpus 1                # both engines on one GPU
    python -m benchmarks.pull_engines --model qwen3_32b_l16   # as many bytes a FLOP as Qwen3-32B's

One engine computes contexts; the other one, which has never seen them, pulls them within the host,
one request at a time. Beside it the other engine computes as many new ones. Then two
engines share one L2, in which the second one finds what the first has computed. Through `AsyncLLM`,
on Ray. On one GPU only one of the two works at a time, so that their times are those of two GPUs,
as long as the memory holds both.

How much sooner pulls are depends on the model: on the bytes of KV that a FLOP makes. A shape that
is cut in layers has nearly those of the whole model, as both go with the layers.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from benchmarks.engine.engine_pairs import PULLING, Asker, ask_each, sections_of, two_engines
from benchmarks.engine.engines import (
    DENSE_TINY,
    Answer,
    Options,
    add_options,
    median_ttft_ms,
    options_of,
)
from benchmarks.engine.workloads import FULL_CONTEXTS, TINY_CONTEXTS, Contexts
from benchmarks.model.model_shapes import SHAPES, ModelConfig
from benchmarks.records.command_line import count, make_parser, run
from benchmarks.records.record import Figure, name_with_ranks
from raydix.runtime.actors.bootstrap.gpu_count import count_gpus

MIN_SPEEDUP = 3.0
_USUAL_MODEL = "dense_l16"


async def measure(
    options: Options, sizes: Contexts, model: ModelConfig, *, tp: int, shared_gpu: bool
) -> list[Figure]:
    """Pull contexts and compute others, in turns; then find them in an L2 that is shared."""
    asker = Asker(sizes, int(model["vocab_size"]))
    pulled: list[Answer] = []
    computed: list[Answer] = []
    shared: list[Answer] = []
    apart = sections_of(sizes, tp, PULLING)
    async with two_engines(options, model, apart, shared_gpu) as (holder, puller):
        await asker.warm(holder, puller)
        for _ in range(options.repeats):
            pulled += await asker.found(holder, puller, "peer")
            computed += await ask_each(puller, asker.draw(2))
        figures: dict[str, Any] = (await puller.stats())["host"]

    together = sections_of(sizes, tp, {"shared": True, "keep_s": 0.0})
    async with two_engines(options, model, together, shared_gpu) as (holder, finder):
        await asker.warm(holder, finder)
        for _ in range(options.repeats):
            shared += await asker.found(holder, finder, "l2")

    pulled_ms, computed_ms = median_ttft_ms(pulled), median_ttft_ms(computed)
    return [
        Figure(
            name="TTFT, computed, of TTFT, pulled",
            value=computed_ms / pulled_ms,
            unit="1",
            min_value=options.bar(MIN_SPEEDUP),
        ),
        Figure(name="TTFT, pulled", value=pulled_ms, unit="ms"),
        Figure(name="TTFT, computed", value=computed_ms, unit="ms"),
        Figure(name="TTFT, found in one L2", value=median_ttft_ms(shared), unit="ms"),
        Figure(name="pages pulled", value=float(figures["peer_reads_ok"]), unit="pages"),
    ]


def main(options: Options, num_ranks: int, num_gpus: int, shape: str) -> int:
    """Measure and report."""
    sizes, model = (
        (TINY_CONTEXTS, DENSE_TINY) if options.is_tiny else (FULL_CONTEXTS, SHAPES[shape])
    )
    figures = asyncio.run(
        measure(options, sizes, model, tp=num_ranks // 2, shared_gpu=num_gpus < num_ranks)
    )
    name = name_with_ranks("pull_engines", num_ranks)
    if shape != _USUAL_MODEL:
        name += f"_{shape}"
    config = {"ranks": num_ranks, "gpus": num_gpus, "model": shape, **asdict(sizes)}
    return options.report(name, config, figures)


def command_line() -> int:
    """Read the command line, and measure what it says."""
    parser = make_parser(__doc__)
    add_options(parser, Options())
    parser.add_argument("--ranks", type=count, default=2, help="of both engines together")
    parser.add_argument(
        "--gpus",
        type=count,
        help="GPUs of both engines together: as many as ranks, or 1 for two ranks; default: 1 if "
        "this host has no more",
    )
    parser.add_argument("--model", choices=SHAPES, default=_USUAL_MODEL, help="a shape")
    read = parser.parse_args()
    if read.ranks % 2:
        parser.error(f"--ranks is {read.ranks}; two engines need an even number")
    num_gpus = read.gpus or (1 if read.ranks == 2 and count_gpus() == 1 else read.ranks)
    if num_gpus != read.ranks and (num_gpus, read.ranks) != (1, 2):
        parser.error(
            f"--gpus is {num_gpus} and --ranks {read.ranks}; expected a GPU for each rank, or one "
            "for two ranks"
        )
    return main(options_of(read, num_gpus), read.ranks, num_gpus, read.model)


if __name__ == "__main__":
    run(command_line)
