"""Measure what quantised pages do to logits: decoding with a hit in L2 against one without.

    python -m benchmarks.codec_logits

A random model, its weights scaled until the median of the largest probability is 0.3: near-uniform
logits would hide errors. The runner prefills prompts; their pages go down to an arena with the
codec and come back, all of them. Then it computes the same next tokens, one by one, whatever it
would have chosen. Beside the codecs: `none`, a control that must change nothing, and what the
model's own rounding to bfloat16 changes.
"""

import queue
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.engine.engines import Options, parse_options
from benchmarks.model.bare_runner import BareRunner
from benchmarks.model.reference_models import divergence, draw_prompts, make_configs, make_reference
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import TransferDone

PAGE_SIZES = (16, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """All of the prefix is in whole pages; the tokens that follow it are compared."""

    num_prompts: int
    prefix_tokens: int
    num_tokens: int


FULL = Sizes(num_prompts=8, prefix_tokens=448, num_tokens=64)
TINY = Sizes(num_prompts=1, prefix_tokens=64, num_tokens=8)


def through_l2(runner: BareRunner, page_ids: NDArray[np.int64]) -> None:
    """Bring pages down into an arena and up again, over what they held."""
    layout, pools = runner.shard.layout, runner.pools
    arena = HostArena.create(layout, (len(page_ids) + 1) * layout.host_page_bytes(0))
    done: queue.SimpleQueue[TransferDone] = queue.SimpleQueue()
    errors: list[BaseException] = []
    make = CudaTransfers if pools[0].is_cuda else CpuTransfers
    engine = make(runner.shard, pools, arena, on_done=done.put, on_error=errors.append)
    if isinstance(engine, CudaTransfers):
        engine.wait_registered()

    host_page_ids = np.arange(len(page_ids))
    copies = PageCopies(
        transfer_ids=int32_array(0 for _ in page_ids),
        groups=int32_array(0 for _ in page_ids),
        page_ids=int32_array(page_ids),
        host_page_ids=int32_array(host_page_ids),
        generations=int32_array(arena.generations[host_page_ids]),
    )

    engine.start(PageCopies(), copies)
    engine.drain()
    # What comes back must be the arena's: nothing of the pages stays.
    for pool in pools:
        pool.zero_()
    if pools[0].is_cuda:
        torch.cuda.synchronize()
    engine.start(copies, PageCopies())
    engine.drain()
    engine.close()


def decode_logits(
    loaded: LoadedModel, prompts: Tensor, sizes: Sizes, page_size: int, codec: Codec
) -> Tensor:
    """float32 logits [all tokens past the prefixes, V]."""
    runner = BareRunner(loaded, prompts, page_size, codec)
    for slot in range(sizes.num_prompts):
        runner.compute(slot, 0, sizes.prefix_tokens)
    through_l2(runner, runner.page_ids[:, : sizes.prefix_tokens // page_size].reshape(-1))

    with runner.recorded_logits() as recorded:
        for slot in range(sizes.num_prompts):
            for position in range(sizes.prefix_tokens, sizes.prefix_tokens + sizes.num_tokens):
                runner.compute(slot, position, 1)
    return torch.cat(recorded)


def changes(
    what: str, before: Tensor, after: Tensor, max_difference: float | None = None
) -> list[Figure]:
    """Figures of what changed; `max_difference` is the bar of the first."""
    difference = (after - before).abs().max() / before.abs().max()
    divergences = divergence(before, after)
    is_same = after.argmax(-1) == before.argmax(-1)

    return [
        Figure(
            name=f"{what}: largest difference of a logit, over the largest logit",
            value=difference.item(),
            unit="1",
            max_value=max_difference,
        ),
        Figure(name=f"{what}: divergence, mean", value=divergences.mean().item(), unit="nat"),
        Figure(name=f"{what}: divergence, median", value=divergences.median().item(), unit="nat"),
        Figure(name=f"{what}: same likeliest token", value=is_same.float().mean().item(), unit="1"),
    ]


@torch.no_grad()
def main(options: Options) -> int:
    """Measure and report."""
    sizes = TINY if options.is_tiny else FULL
    config = make_configs(is_tiny=options.is_tiny)["dense"]
    num_tokens = sizes.prefix_tokens + sizes.num_tokens
    prompts = draw_prompts(config, sizes.num_prompts, num_tokens).to(options.device)
    model, top1 = make_reference(config, prompts)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        exact, rounded = (
            load_model(Path(folder), device=prompts.device, dtype=dtype)
            for dtype in (torch.float32, torch.bfloat16)
        )

    figures = [Figure(name="median of the largest probability", value=top1, unit="1")]
    loaded = rounded if options.device == "cuda" else exact
    for page_size in PAGE_SIZES:
        cold, *warm = (
            decode_logits(loaded, prompts, sizes, page_size, codec)
            for codec in (Codec.NONE, *Codec)
        )
        for codec, logits in zip(Codec, warm, strict=True):
            bar = options.bar(0.0) if codec is Codec.NONE else None
            figures += changes(f"{codec}, page {page_size}", cold, logits, bar)

    exact_logits, rounded_logits = (
        decode_logits(each, prompts, sizes, PAGE_SIZES[0], Codec.NONE) for each in (exact, rounded)
    )
    figures += changes("bfloat16 itself", exact_logits, rounded_logits)
    return options.report("codec_logits", {"model": "Qwen3, random", **asdict(sizes)}, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
