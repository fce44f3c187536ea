"""Mixtral: experts in every layer."""

from collections.abc import Mapping
from typing import Any

from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_glu,
    read_norm,
    require_enough_experts,
    window_in_all,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec, MoeMlpSpec

_EXPERT_NAMES: Mapping[str, str] = {
    "layers.{}.mlp.router": "model.layers.{}.block_sparse_moe.gate",
    "layers.{}.mlp.experts.{}.gate": "model.layers.{}.block_sparse_moe.experts.{}.w1",
    "layers.{}.mlp.experts.{}.up": "model.layers.{}.block_sparse_moe.experts.{}.w3",
    "layers.{}.mlp.experts.{}.down": "model.layers.{}.block_sparse_moe.experts.{}.w2",
}


def _read_spec(config: Any) -> ModelSpec:
    require_enough_experts(config.num_experts_per_tok, config.num_local_experts)
    layer = LayerSpec(
        attention=read_attention(config, qkv_bias=False, output_bias=False, qk_norm=None),
        mlp=MoeMlpSpec(
            num_experts=config.num_local_experts,
            experts_per_token=config.num_experts_per_tok,
            intermediate_size=config.intermediate_size,
            routing=SoftmaxRouting(renormalise=True),
            shared=None,
            glu=read_glu(config.hidden_act),
        ),
        norm=read_norm(config),
    )
    return make_spec(config, window_in_all(config, [layer] * config.num_hidden_layers))


MIXTRAL = FamilyDefinition(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **_EXPERT_NAMES},
)
