"""Random models by transformers that are sure enough of their tokens to show errors of logits.

Their weights are scaled until the median of the largest probability is 0.3: near-uniform logits
would hide errors.
"""

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

MIN_TOP1 = 0.3
_SCALE_STEP = 1.1
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


def make_configs(*, is_tiny: bool) -> dict[str, PreTrainedConfig]:
    """The models' configurations by name."""
    tiny = _TINY if is_tiny else {}
    return {
        "dense": Qwen3Config(**{**_COMMON, **_DENSE, **tiny}),
        "MoE": Qwen3MoeConfig(**{**_COMMON, **_MOE, **tiny}),
    }


def reference_logits(model: PreTrainedModel, prompts: Tensor) -> Tensor:
    """float32 logits [all tokens, V] by transformers, in the model's dtype."""
    return torch.cat([model(prompt[None]).logits[0].float() for prompt in prompts])


def make_reference(config: PreTrainedConfig, prompts: Tensor) -> tuple[PreTrainedModel, float]:
    """A random float32 model, and the median of its largest probability."""
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


def draw_prompts(config: PreTrainedConfig, num_prompts: int, num_tokens: int) -> Tensor:
    """Random token ids [prompts, tokens], the same in every run, on the cpu."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_prompts, num_tokens)
    return torch.randint(0, config.vocab_size, shape, generator=generator)


def divergence(exact: Tensor, other: Tensor) -> Tensor:
    """Kullback-Leibler divergence per token, in nats, of float32 logits [T, V]."""
    exact, other = exact.log_softmax(-1), other.log_softmax(-1)
    return (exact.exp() * (exact - other)).sum(-1)
