"""Qwen3 with experts, of which some layers may have none."""

from typing import Any

from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_glu,
    read_mlp,
    read_norm,
    require_enough_experts,
    window_in_all,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES, EXPERT_NAMES, QK_NORM_NAMES
from raydix.runtime.model.spec.spec import DenseMlpSpec, LayerSpec, ModelSpec, MoeMlpSpec


def _read_spec(config: Any) -> ModelSpec:
    norm, bias = read_norm(config), bool(config.attention_bias)
    attention = read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=norm)
    layers = [
        LayerSpec(attention=attention, mlp=read_mlp_of_layer(config, layer), norm=norm)
        for layer in range(config.num_hidden_layers)
    ]
    return make_spec(config, window_in_all(config, layers))


def read_mlp_of_layer(config: Any, layer: int) -> DenseMlpSpec | MoeMlpSpec:
    """The feed-forward of a layer: experts in every so many of them, but for some by number."""
    # Qwen3.5's configs say nothing of layers without experts, nor of weights that do not add up.
    is_sparse = (
        layer not in (getattr(config, "mlp_only_layers", None) or ())
        and config.num_experts > 0
        and (layer + 1) % getattr(config, "decoder_sparse_step", 1) == 0
    )
    if not is_sparse:
        return read_mlp(config, bias=False)

    require_enough_experts(config.num_experts_per_tok, config.num_experts)
    return MoeMlpSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        routing=SoftmaxRouting(renormalise=getattr(config, "norm_topk_prob", True)),
        shared=None,
        glu=read_glu(config.hidden_act),
    )


QWEN3_MOE = FamilyDefinition(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **QK_NORM_NAMES, **EXPERT_NAMES},
)
