"""Mistral: as Llama, where every layer may have a window."""

from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_mlp,
    read_norm,
    window_in_all,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec


def _read_spec(config: Any) -> ModelSpec:
    layer = LayerSpec(
        attention=read_attention(config, qkv_bias=False, output_bias=False, qk_norm=None),
        mlp=read_mlp(config, bias=False),
        norm=read_norm(config),
    )
    return make_spec(config, window_in_all(config, [layer] * config.num_hidden_layers))


MISTRAL = FamilyDefinition(
    model_type="mistral",
    architecture="MistralForCausalLM",
    read_spec=_read_spec,
    weight_names=DECODER_NAMES,
)
