"""Compare bfloat16 with float32, and with what transformers loses by bfloat16.

    python -m benchmarks.bf16_accuracy

Random models, their weights scaled until the median of the largest probability is 0.3: near-uniform
logits would hide errors. Every token of random prompts is computed in float32 and in bfloat16 by
transformers, and in bfloat16 by the runner: by a prefill, by extensions of cached prefixes, and one
by one as in decoding. The figures are Kullback-Leibler divergences from float32. The mean of a
model with experts rests on the tokens that rounding sends to other experts, the median on all
others.
"""

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from benchmarks.engines import Options, parse_options
from benchmarks.record import Figure
from raydix.ids import RequestId, Slot
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, TableChanges
from raydix.runtime.model.checkpoint import load_model
from raydix.runtime.model.runner import ModelRunner
from raydix.runtime.tiers.gpu_pool import make_pools

MAX_RATIO = 1.5
MIN_TOP1 = 0.3
_SCALE_STEP = 1.1
PAGE_SIZE = 64
NUM_EXTENSIONS, EXTENSION_TOKENS = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Half of a prompt is prefilled; the extensions come next, and single tokens for the rest."""

    num_prompts: int
    prompt_tokens: int


FULL = Sizes(num_prompts=8, prompt_tokens=512)
TINY = Sizes(num_prompts=1, prompt_tokens=300)
_COMMON = {
    "tie_word_embeddings": False,
    "max_position_embeddings": 1024,
    "eos_token_id": None,
    "bos_token_id": None,
}
_DENSE = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
_MOE = {
    **_DENSE,
    "hidden_size": 768,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
}
_TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
}


def make_configs(options: Options) -> dict[str, PreTrainedConfig]:
    """The models' configurations by name."""
    tiny = _TINY if options.is_tiny else {}
    return {
        "dense": Qwen3Config(**{**_COMMON, **_DENSE, **tiny}),
        "MoE": Qwen3MoeConfig(**{**_COMMON, **_MOE, **tiny}),
    }


def reference_logits(model: PreTrainedModel, prompts: Tensor) -> Tensor:
    """float32 logits [all tokens, V] by transformers, in the model's dtype."""
    return torch.cat([model(prompt[None]).logits[0].float() for prompt in prompts])


def make_reference(config: PreTrainedConfig, prompts: Tensor) -> tuple[PreTrainedModel, float]:
    """A random float32 model that is sure enough of its tokens; also returns the median of its
    largest probability.
    """
    torch.manual_seed(0)
    with torch.device(prompts.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
    while True:
        top1 = reference_logits(model, prompts).softmax(-1).amax(-1).median().item()
        if top1 >= MIN_TOP1:
            return model, top1
        for parameter in model.parameters():
            if parameter.dim() > 1:  # all but the norms' weights
                parameter.mul_(_SCALE_STEP)


def runner_logits(folder: Path, prompts: Tensor) -> Tensor:
    """bfloat16 logits [all tokens, V] by the runner, as float32."""
    device = prompts.device
    loaded = load_model(folder, device=device, dtype=torch.bfloat16)
    num_prompts, num_tokens = prompts.shape
    num_pages = -(-num_tokens // PAGE_SIZE)
    shard = KvShard(layout=loaded.kv_layout(PAGE_SIZE, "bfloat16"))
    pools = make_pools(shard, [num_prompts * num_pages], device)
    runner = ModelRunner(
        loaded.decoder,
        pools,
        page_size=PAGE_SIZE,
        max_slots=num_prompts,
        max_model_len=num_tokens,
        device=device,
    )
    page_ids = np.random.default_rng(0).permutation(num_prompts * num_pages) + 1
    runner.apply(add_prompts(prompts.cpu().numpy(), page_ids, num_pages))
    recorded: list[Tensor] = []
    loaded.decoder.register_forward_hook(
        lambda module, inputs, hidden: recorded.append(loaded.decoder.logits(hidden).float())
    )
    step = 0
    for slot in range(num_prompts):
        start = 0
        while start < num_tokens:
            count = _num_tokens_at(start, num_tokens)
            step += 1
            runner.execute(plan_row(step, slot, start, count), lambda load, layer: None)
            start += count
    return torch.cat(recorded)


def _num_tokens_at(start: int, prompt_tokens: int) -> int:
    half = prompt_tokens // 2
    if start < half:
        return half - start
    return EXTENSION_TOKENS if start < half + NUM_EXTENSIONS * EXTENSION_TOKENS else 1


def add_prompts(prompts: np.ndarray, page_ids: np.ndarray, num_pages: int) -> StepPlan:
    """A request for each prompt, with `num_pages` of the pages; no row."""
    slots = range(len(prompts))
    added = tuple(
        AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(str(slot)),
            token_ids=int32_array(prompts[slot]),
            num_prompt_tokens=len(prompts[slot]),
            sampling=DeviceSampling(seed=0),
        )
        for slot in slots
    )
    tables = TableChanges(
        slots=int32_array(slots),
        starts=int32_array(0 for _ in slots),
        counts=int32_array(num_pages for _ in slots),
        page_ids=int32_array(page_ids),
    )
    return StepPlan(step=0, added=added, tables=(tables,))


def plan_row(step: int, slot: int, start: int, num_tokens: int) -> StepPlan:
    """One row that samples nothing."""
    return StepPlan(
        step=step,
        row_slots=int32_array([slot]),
        row_starts=int32_array([start]),
        row_num_tokens=int32_array([num_tokens]),
        row_write_starts=int32_array([start]),
        row_output_positions=int32_array([-1]),
        row_loads=int32_array([-1]),
    )


def divergence(exact: Tensor, other: Tensor) -> Tensor:
    """Kullback-Leibler divergence per token, in nats, of float32 logits [T, V]."""
    exact, other = exact.log_softmax(-1), other.log_softmax(-1)
    return (exact.exp() * (exact - other)).sum(-1)


@torch.inference_mode()
def measure(name: str, config: PreTrainedConfig, sizes: Sizes, options: Options) -> list[Figure]:
    """Figures of one model."""
    generator = torch.Generator().manual_seed(0)
    shape = (sizes.num_prompts, sizes.prompt_tokens)
    prompts = torch.randint(0, config.vocab_size, shape, generator=generator).to(options.device)
    model, top1 = make_reference(config, prompts)
    exact = reference_logits(model, prompts)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours = divergence(exact, runner_logits(Path(folder), prompts))
        # Loaded again: a conversion of the model at hand would round the rotary frequencies, too.
        rounded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    theirs = divergence(exact, reference_logits(rounded.to(options.device).eval(), prompts))
    means = ours.mean().item(), theirs.mean().item()
    medians = ours.median().item(), theirs.median().item()
    beside = {"baseline_name": "transformers"}
    return [
        Figure(name=f"{name}: median of the largest probability", value=top1, unit="1"),
        Figure(
            name=f"{name}: divergence, mean",
            value=means[0],
            unit="nat",
            baseline=means[1],
            **beside,
        ),
        Figure(
            name=f"{name}: divergence, median",
            value=medians[0],
            unit="nat",
            baseline=medians[1],
            **beside,
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
    ]


def main(options: Options) -> int:
    """Measure and report."""
    sizes = TINY if options.is_tiny else FULL
    figures = [
        figure
        for name, config in make_configs(options).items()
        for figure in measure(name, config, sizes, options)
    ]
    return options.report(
        "bf16_accuracy", {"model": "Qwen3, random", "dtype": "bfloat16", **asdict(sizes)}, figures
    )


if __name__ == "__main__":
    sys.exit(main(parse_options(__doc__)))
