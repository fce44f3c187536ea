"""Translate the decoder's names of weights into those that checkpoints use.

A table has one entry per part of a model, without the `.weight` or `.bias` that both sides add;
`{}` stands for the number of a layer, then of an expert.
"""

import re
from collections.abc import Mapping

DECODER_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "layers.{}.attention_norm": "model.layers.{}.input_layernorm",
    "layers.{}.attention.q": "model.layers.{}.self_attn.q_proj",
    "layers.{}.attention.k": "model.layers.{}.self_attn.k_proj",
    "layers.{}.attention.v": "model.layers.{}.self_attn.v_proj",
    "layers.{}.attention.output": "model.layers.{}.self_attn.o_proj",
    "layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
    "layers.{}.mlp.gate": "model.layers.{}.mlp.gate_proj",
    "layers.{}.mlp.up": "model.layers.{}.mlp.up_proj",
    "layers.{}.mlp.down": "model.layers.{}.mlp.down_proj",
}
"""What Llama calls its parts, and most families after it."""

QK_NORM_NAMES: Mapping[str, str] = {
    "layers.{}.attention.q_norm": "model.layers.{}.self_attn.q_norm",
    "layers.{}.attention.k_norm": "model.layers.{}.self_attn.k_norm",
}

EXPERT_NAMES: Mapping[str, str] = {
    "layers.{}.mlp.router": "model.layers.{}.mlp.gate",
    "layers.{}.mlp.experts.{}.gate": "model.layers.{}.mlp.experts.{}.gate_proj",
    "layers.{}.mlp.experts.{}.up": "model.layers.{}.mlp.experts.{}.up_proj",
    "layers.{}.mlp.experts.{}.down": "model.layers.{}.mlp.experts.{}.down_proj",
}
"""What Qwen and DeepSeek call routed experts, and most families after them."""

SHARED_EXPERTS_NAMES: Mapping[str, str] = {
    "layers.{}.mlp.shared.gate": "model.layers.{}.mlp.shared_experts.gate_proj",
    "layers.{}.mlp.shared.up": "model.layers.{}.mlp.shared_experts.up_proj",
    "layers.{}.mlp.shared.down": "model.layers.{}.mlp.shared_experts.down_proj",
}
"""What DeepSeek calls the experts that every token visits."""

SHARED_EXPERT_NAMES: Mapping[str, str] = {
    "layers.{}.mlp.shared.gate": "model.layers.{}.mlp.shared_expert.gate_proj",
    "layers.{}.mlp.shared.up": "model.layers.{}.mlp.shared_expert.up_proj",
    "layers.{}.mlp.shared.down": "model.layers.{}.mlp.shared_expert.down_proj",
    "layers.{}.mlp.shared_gate": "model.layers.{}.mlp.shared_expert_gate",
}
"""What Qwen calls the one that every token visits, and its gate."""

FOUR_NORM_NAMES: Mapping[str, str] = {
    "layers.{}.attention_norm": "model.layers.{}.input_layernorm",
    "layers.{}.attention_post_norm": "model.layers.{}.post_attention_layernorm",
    "layers.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
    "layers.{}.mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
}
"""Where a norm follows attention and feed-forward, too."""


_TEXT_PREFIXES: Mapping[str, str] = {"model.language_model.": "model.", "language_model.": ""}
"""What names begin with where the language model is one part of several, and what without it."""


def own_name(stored: str) -> str:
    """What a tensor would be called in a checkpoint of the language model alone."""
    for prefix, own in _TEXT_PREFIXES.items():
        if stored.startswith(prefix):
            return own + stored.removeprefix(prefix)
    return stored


def stored_names(own: str) -> list[str]:
    """What a module may be called in a checkpoint, of the language model alone or with others."""
    wider = [
        stored + own.removeprefix(prefix)
        for stored, prefix in _TEXT_PREFIXES.items()
        if own.startswith(prefix)
    ]
    return [own, *wider]


def checkpoint_name(weight: str, names: Mapping[str, str]) -> str:
    """What a checkpoint of the language model alone calls a weight of `Decoder.weights`.

    Raises KeyError if the table lacks it.
    """
    part, _, kind = weight.rpartition(".")
    numbers = re.findall(r"\d+", part)
    return f"{names[re.sub(r'[0-9]+', '{}', part)].format(*numbers)}.{kind}"
