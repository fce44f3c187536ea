"""Qwen3: a norm on each head of queries and keys."""

from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_mlp,
    read_norm,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES, QK_NORM_NAMES
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec


def _read_spec(config: Any) -> ModelSpec:
    norm, bias = read_norm(config), bool(config.attention_bias)
    layer = LayerSpec(
        attention=read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=norm),
        mlp=read_mlp(config, bias=False),
        norm=norm,
    )
    return make_spec(config, window_by_type(config, [layer] * config.num_hidden_layers))


QWEN3 = FamilyDefinition(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **QK_NORM_NAMES},
)
