"""Measure a whole model whose weights stay in float8 against the same in bfloat16.

    python -m benchmarks.fp8_model

The time per output token of moe_l12 at several batch sizes, through `AsyncLLM`, on Ray, as
`decode_tpot` measures it: with weights in blocks of 128 x 128, and in bfloat16; and the time to the
first token of a long prompt. Then how far logits are from those of the restored floats in float32,
as `bf16_accuracy` measures it: Kullback-Leibler divergences of the model that multiplies in float8,
beside those of the one that restores to bfloat16.
"""

import asyncio
import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from benchmarks.bf16_accuracy import FULL, TINY, Sizes, runner_logits
from benchmarks.decode_tpot import play_rounds
from benchmarks.engine.engines import (
    MOE_L12,
    MOE_TINY,
    Options,
    Prompts,
    ask,
    parse_options,
    ray_engine,
    steady_tpot_ms,
)
from benchmarks.engine.workloads import FULL_BATCHES, TINY_BATCHES, Batches
from benchmarks.model.model_shapes import FP8, ModelConfig
from benchmarks.model.reference_models import (
    divergence,
    draw_prompts,
    make_configs,
    make_reference,
    reference_logits,
)
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.fp8.form import BLOCK
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config

MAX_TPOT_RATIO = 0.65
MAX_TTFT_RATIO = 1.0
BATCH_SIZES = (1, 8, 32, 128)
_NUM_PROMPTS = 7
_MATRICES = re.compile(r".*\.layers\..*_proj\.weight")


@dataclass(frozen=True, kw_only=True)
class Times:
    """What one engine takes."""

    tpot_ms: dict[int, float]
    """Median time per output token, by batch size."""
    ttft_ms: float
    """Median time to the first token of a prompt that is a chunk."""


async def measure(
    options: Options, sizes: Batches, model: ModelConfig, way: QuantizationWay
) -> Times:
    """Measure an engine, after a round that warms up."""
    tpot_ms = {}
    prompts = Prompts(int(model["vocab_size"]))
    sections = sizes.sections(sizes.output_tokens)
    sections["model"]["quantization"] = way.value
    async with ray_engine(options, model, sections, "fp8-model") as llm:
        for batch in sizes.max_ms:
            rounds = await play_rounds(llm, options, sizes, prompts, batch, ())
            tpot_ms[batch] = median(steady_tpot_ms(answers) for answers in rounds["greedy"][1:])
        long = min(sizes.chunk_tokens, sizes.max_model_len - 1)
        answers = [await ask(llm.generate, prompts.draw(long), 1) for _ in range(_NUM_PROMPTS)]
    return Times(tpot_ms=tpot_ms, ttft_ms=median(each.ttft_ms for each in answers))


def time_figures(options: Options) -> list[Figure]:
    """Times of both, and their ratios with bars."""
    sizes, model = (TINY_BATCHES, MOE_TINY) if options.is_tiny else (FULL_BATCHES, MOE_L12)
    if not options.is_tiny:
        sizes = replace(sizes, max_ms=dict.fromkeys(BATCH_SIZES, 0.0))
    bf16 = asyncio.run(measure(options, sizes, model, QuantizationWay.AUTO))
    quantised = {**model, "quantization_config": FP8}
    float8 = asyncio.run(measure(options, sizes, quantised, QuantizationWay.NATIVE))

    def beside(name: str, ms: float, bf16_ms: float, most: float) -> list[Figure]:
        what, _, where = name.partition(", ")
        return [
            Figure(
                name=f"{what} in float8, {where}",
                value=ms,
                unit="ms",
                baseline=bf16_ms,
                baseline_name="bf16",
            ),
            Figure(
                name=f"{what} in float8 over that in bf16, {where}",
                value=ms / bf16_ms,
                unit="1",
                max_value=options.bar(most),
            ),
        ]

    figures = []
    for batch, bf16_ms in bf16.tpot_ms.items():
        figures += beside(f"TPOT, batch {batch}", float8.tpot_ms[batch], bf16_ms, MAX_TPOT_RATIO)
    prompt = f"TTFT, a prompt of {sizes.chunk_tokens} tokens"
    return figures + beside(prompt, float8.ttft_ms, bf16.ttft_ms, MAX_TTFT_RATIO)


def quantise_folder(plain: Path, folder: Path) -> None:
    """Store matrices of a checkpoint in blocks; in `plain` become floats what those stand for."""
    tensors = load_file(plain / "model.safetensors")
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _MATRICES.fullmatch(name):
            numbers, scales, tensors[name] = quantise(tensor)
            stored |= {name: numbers, f"{name}_scale_inv": scales}
        else:
            stored[name] = tensor
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, folder / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FP8}))


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, scales of blocks whose largest number becomes 448, and the restored matrix."""
    outputs, inputs = matrix.shape
    padded = torch.nn.functional.pad(matrix, (0, -inputs % BLOCK, 0, -outputs % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / 448
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:outputs, :inputs]
    numbers = (matrix / wide).to(torch.float8_e4m3fn)
    return numbers, scales, numbers.float() * wide


@torch.inference_mode()
def divergence_figures(
    name: str, config: PreTrainedConfig, sizes: Sizes, options: Options
) -> list[Figure]:
    """Figures of one model."""
    prompts = draw_prompts(config, sizes.num_prompts, sizes.prompt_tokens).to(options.device)
    model, _ = make_reference(config, prompts)
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as quantised:
        model.save_pretrained(plain)
        quantise_folder(Path(plain), Path(quantised))
        restored = AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.float32, attn_implementation="sdpa"
        )
        exact = reference_logits(restored.to(options.device).eval(), prompts)
        ways = {
            way: divergence(exact, _logits_by(way, Path(quantised), prompts))
            for way in (QuantizationWay.NATIVE, QuantizationWay.RESTORE)
        }

    def figure(kind: str, value: float, restored_value: float) -> Figure:
        return Figure(
            name=f"{name}: divergence in float8, {kind}",
            value=value,
            unit="nat",
            baseline=restored_value,
            baseline_name="restored to bf16",
        )

    native, bf16 = ways[QuantizationWay.NATIVE], ways[QuantizationWay.RESTORE]
    return [
        figure("mean", native.mean().item(), bf16.mean().item()),
        figure("median", native.median().item(), bf16.median().item()),
    ]


def _logits_by(way: QuantizationWay, folder: Path, prompts: Tensor) -> Tensor:
    config = read_checkpoint_config(folder).served(way, prompts.device.type, None)
    return runner_logits(folder, prompts, config)


def main(options: Options) -> int:
    """Measure and report."""
    sizes = TINY if options.is_tiny else FULL
    figures = time_figures(options)
    for name, config in make_configs(is_tiny=options.is_tiny).items():
        figures += divergence_figures(name, config, sizes, options)
    return options.report("fp8_model", {"model": "moe_l12", "block": [BLOCK, BLOCK]}, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
