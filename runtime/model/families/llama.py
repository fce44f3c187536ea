"""Llama 2 and 3, and what is built like them."""

from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_mlp,
    read_norm,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec


def _read_spec(config: Any) -> ModelSpec:
    bias = bool(config.attention_bias)
    layer = LayerSpec(
        attention=read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=None),
        mlp=read_mlp(config, bias=bool(config.mlp_bias)),
        norm=read_norm(config),
    )
    return make_spec(config, (layer,) * config.num_hidden_layers)


LLAMA = FamilyDefinition(
    model_type="llama",
    architecture="LlamaForCausalLM",
    read_spec=_read_spec,
    weight_names=DECODER_NAMES,
)
