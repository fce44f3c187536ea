"""Qwen2 and Qwen2.5: always a bias on queries, keys and values, and on nothing else."""

from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_mlp,
    read_norm,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec


def _read_spec(config: Any) -> ModelSpec:
    layer = LayerSpec(
        attention=read_attention(config, qkv_bias=True, output_bias=False, qk_norm=None),
        mlp=read_mlp(config, bias=False),
        norm=read_norm(config),
    )
    return make_spec(config, window_by_type(config, [layer] * config.num_hidden_layers))


QWEN2 = FamilyDefinition(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    read_spec=_read_spec,
    weight_names=DECODER_NAMES,
)
