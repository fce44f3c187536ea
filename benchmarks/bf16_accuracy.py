"""Compare bfloat16 with float32, and with what transformers loses by bfloat16.

    python -m benchmarks.bf16_accuracy

Random models, their weights scaled until the median of the largest probability is 0.3: near-uniform
logits would hide errors. Every token of random prompts is computed in float32 and in bfloat16 by
transformers, and in bfloat16 by the runner: by a prefill, by extensions of cached prefixes, and one
by one as in decoding. The figures are Kullback-Leibler divergences from float32. The mean of a
model with experts rests on the tokens that rounding sends to other experts, the median on all
others. Of a model with experts also what rows add that travel to them as float8
(`experts.transport: fp8`), beside rows in bfloat16: of a rank that shares experts with itself, as
rounding does not depend on who has them.
"""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3MoeConfig

from benchmarks.engine.engines import Options, parse_options
from benchmarks.model.bare_runner import BareRunner
from benchmarks.model.reference_models import (
    divergence,
    draw_prompts,
    make_configs,
    make_reference,
    reference_logits,
)
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.moe.dispatch.transport import Transport
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.checkpoint.checkpoint_config import CheckpointConfig
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks

MAX_RATIO = 1.5
PAGE_SIZE = 64
NUM_EXTENSIONS, EXTENSION_TOKENS = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Half of a prompt is prefilled; the extensions come next, and single tokens for the rest."""

    num_prompts: int
    prompt_tokens: int


FULL = Sizes(num_prompts=8, prompt_tokens=512)
TINY = Sizes(num_prompts=1, prompt_tokens=300)


def runner_logits(
    folder: Path,
    prompts: Tensor,
    config: CheckpointConfig | None = None,
    expert_ranks: ExpertRanks | None = None,
) -> Tensor:
    """bfloat16 logits [all tokens, V] by the runner, as float32.

    `config`, `expert_ranks`: as of `load_model`.
    """
    loaded = load_model(
        folder,
        device=prompts.device,
        dtype=torch.bfloat16,
        config=config,
        expert_ranks=expert_ranks,
    )
    runner = BareRunner(loaded, prompts, PAGE_SIZE)
    num_prompts, num_tokens = prompts.shape

    with runner.recorded_logits() as recorded:
        for slot in range(num_prompts):
            start = 0
            while start < num_tokens:
                count = _num_tokens_at(start, num_tokens)
                runner.compute(slot, start, count)
                start += count
    return torch.cat(recorded)


def _num_tokens_at(start: int, prompt_tokens: int) -> int:
    half = prompt_tokens // 2
    if start < half:
        return half - start
    return EXTENSION_TOKENS if start < half + NUM_EXTENSIONS * EXTENSION_TOKENS else 1


@torch.inference_mode()
def measure(name: str, config: PreTrainedConfig, sizes: Sizes, options: Options) -> list[Figure]:
    """Figures of one model."""
    prompts = draw_prompts(config, sizes.num_prompts, sizes.prompt_tokens).to(options.device)
    model, top1 = make_reference(config, prompts)
    exact = reference_logits(model, prompts)

    packed = None
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        logits = runner_logits(Path(folder), prompts)
        if isinstance(config, Qwen3MoeConfig):
            packed = runner_logits(Path(folder), prompts, expert_ranks=rank_of_packed_rows(sizes))
        # Loaded again: a conversion of the model at hand would round the rotary frequencies, too.
        rounded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    theirs = divergence(exact, reference_logits(rounded.to(options.device).eval(), prompts))

    ours = divergence(exact, logits)
    means = ours.mean().item(), theirs.mean().item()
    medians = ours.median().item(), theirs.median().item()
    return [
        Figure(name=f"{name}: median of the largest probability", value=top1, unit="1"),
        Figure(
            name=f"{name}: divergence, mean",
            value=means[0],
            unit="nat",
            baseline=means[1],
            baseline_name="transformers",
        ),
        Figure(
            name=f"{name}: divergence, median",
            value=medians[0],
            unit="nat",
            baseline=medians[1],
            baseline_name="transformers",
        ),
        Figure(
            name=f"{name}: mean divergence over that of transformers",
            value=means[0] / means[1],
            unit="1",
            max_value=options.bar(MAX_RATIO),
        ),
        Figure(
            name=f"{name}: median divergence over that of transformers",
            value=medians[0] / medians[1],
            unit="1",
            max_value=options.bar(MAX_RATIO),
        ),
        *([] if packed is None else packed_figures(name, exact, logits, packed)),
    ]


def rank_of_packed_rows(sizes: Sizes) -> ExpertRanks:
    """A step group of one rank, whose rows are rounded as those that travel as float8."""
    return ExpertRanks(
        rank=0,
        size=1,
        connect=lambda shape: LOOPBACK,
        max_tokens=sizes.prompt_tokens,
        max_low_latency_tokens=0,
        transport=Transport.FP8,
    )


def packed_figures(name: str, exact: Tensor, bf16: Tensor, packed: Tensor) -> list[Figure]:
    """What rows as float8 add to the error of rows in bfloat16. All are logits [T, V]."""
    errors = {
        "divergence, mean": [divergence(exact, each).mean().item() for each in (packed, bf16)],
        "divergence, median": [divergence(exact, each).median().item() for each in (packed, bf16)],
        "relative error of logits": [
            ((each - exact).norm() / exact.norm()).item() for each in (packed, bf16)
        ],
    }
    return [
        Figure(
            name=f"{name}, rows as float8: {kind}",
            value=value,
            unit="1" if kind.startswith("relative") else "nat",
            baseline=baseline,
            baseline_name="rows in bf16",
        )
        for kind, (value, baseline) in errors.items()
    ]


def main(options: Options) -> int:
    """Measure and report."""
    sizes = TINY if options.is_tiny else FULL
    figures = [
        figure
        for name, config in make_configs(is_tiny=options.is_tiny).items()
        for figure in measure(name, config, sizes, options)
    ]
    return options.report(
        "bf16_accuracy", {"model": "Qwen3, random", "dtype": "bfloat16", **asdict(sizes)}, figures
    )


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
