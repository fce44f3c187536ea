"""Qwen1.5-MoE and Qwen2-MoE: as Qwen3-MoE, with biases and a shared expert that has a gate."""

from dataclasses import replace
from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_glu,
    read_norm,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.qwen3_moe import read_mlp_of_layer
from raydix.runtime.model.families.weight_names import (
    DECODER_NAMES,
    EXPERT_NAMES,
    SHARED_EXPERT_NAMES,
)
from raydix.runtime.model.spec.spec import DenseMlpSpec, LayerSpec, ModelSpec, MoeMlpSpec


def _read_spec(config: Any) -> ModelSpec:
    attention = read_attention(
        config, qkv_bias=bool(config.qkv_bias), output_bias=False, qk_norm=None
    )
    norm = read_norm(config)
    layers = [
        LayerSpec(attention=attention, mlp=read_mlp_beside_shared(config, layer), norm=norm)
        for layer in range(config.num_hidden_layers)
    ]
    return make_spec(config, window_by_type(config, layers))


def read_mlp_beside_shared(config: Any, layer: int) -> DenseMlpSpec | MoeMlpSpec:
    """The feed-forward of a layer: where it has experts, a shared one has a gate."""
    mlp = read_mlp_of_layer(config, layer)
    if isinstance(mlp, DenseMlpSpec):
        return mlp
    shared = DenseMlpSpec(
        intermediate_size=config.shared_expert_intermediate_size,
        bias=False,
        glu=read_glu(config.hidden_act),
    )
    return replace(mlp, shared=shared, has_shared_gate=True)


QWEN2_MOE = FamilyDefinition(
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **EXPERT_NAMES, **SHARED_EXPERT_NAMES},
)
