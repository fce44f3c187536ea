"""GLM-4.5, 4.6 and 4.7: many experts as in DeepSeek-V3, and heads of which a part is rotated."""

from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_norm,
    read_partly_rotated_attention,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.many_experts import (
    read_corrected_routing,
    read_dense_then_sparse,
)
from raydix.runtime.model.families.weight_names import (
    DECODER_NAMES,
    EXPERT_NAMES,
    QK_NORM_NAMES,
    SHARED_EXPERTS_NAMES,
)
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec


def _read_spec(config: Any) -> ModelSpec:
    norm = read_norm(config)
    attention = read_partly_rotated_attention(
        config,
        qkv_bias=bool(config.attention_bias),
        output_bias=False,
        qk_norm=norm if config.use_qk_norm else None,
    )
    mlps = read_dense_then_sparse(config, read_corrected_routing(config), bias=False)
    layers = tuple(LayerSpec(attention=attention, mlp=mlp, norm=norm) for mlp in mlps)
    return make_spec(config, layers)


GLM4_MOE = FamilyDefinition(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **QK_NORM_NAMES, **EXPERT_NAMES, **SHARED_EXPERTS_NAMES},
    has_prediction_layers=True,
)
