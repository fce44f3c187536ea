"""MiniMax-M2: a norm of all heads at once, a part of each rotated, and experts by sigmoids."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_glu,
    read_norm,
    read_partly_rotated_attention,
    require_enough_experts,
    require_value,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.mixtral import MIXTRAL
from raydix.runtime.model.families.weight_names import QK_NORM_NAMES
from raydix.runtime.model.formats.restoring import Tensors
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec, MoeMlpSpec

_BIAS = "block_sparse_moe.e_score_correction_bias"
_WEIGHT_NAMES: Mapping[str, str] = {**MIXTRAL.weight_names, **QK_NORM_NAMES}


def _read_spec(config: Any) -> ModelSpec:
    require_enough_experts(config.num_experts_per_tok, config.num_local_experts)
    require_value("scoring_func", getattr(config, "scoring_func", "sigmoid"), "sigmoid")
    require_value("use_routing_bias", getattr(config, "use_routing_bias", True), True)
    require_value("use_qk_norm", getattr(config, "use_qk_norm", True), True)
    require_value("qk_norm_type", getattr(config, "qk_norm_type", "per_layer"), "per_layer")
    require_value("shared_intermediate_size", getattr(config, "shared_intermediate_size", 0), 0)
    require_value("attn_type_list", set(getattr(config, "attn_type_list", [1])), {1})
    norm = read_norm(config)
    attention = read_partly_rotated_attention(
        config, qkv_bias=False, output_bias=False, qk_norm=None
    )
    mlp = MoeMlpSpec(
        num_experts=config.num_local_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.intermediate_size,
        routing=_ROUTING,
        shared=None,
        glu=read_glu(config.hidden_act),
    )
    layer = LayerSpec(attention=replace(attention, whole_qk_norm=norm), mlp=mlp, norm=norm)
    return make_spec(config, (layer,) * config.num_hidden_layers)


def _restore(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """Call the bias of the router's choice a part of the router, as other families do."""
    for name, tensor in tensors:
        yield name.replace(_BIAS, _BIAS.replace(".", ".gate.")), tensor


_ROUTING = GroupLimitedRouting(
    scoring=Scoring.SIGMOID,
    num_groups=1,
    groups_per_token=1,
    scores_per_group=1,
    renormalise=True,
    scale=1.0,
    has_correction_bias=True,
)
MINIMAX_M2 = FamilyDefinition(
    model_type="minimax_m2",
    architecture="MiniMaxM2ForCausalLM",
    read_spec=_read_spec,
    weight_names=_WEIGHT_NAMES,
    restore=_restore,
    has_prediction_layers=True,
)
