"""OLMo 3: norms behind attention and feed-forward alone, and of all heads at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_layer_types,
    read_mlp,
    read_norm,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES, QK_NORM_NAMES
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec

_NORM_NAMES: Mapping[str, str] = {
    "layers.{}.attention_post_norm": "model.layers.{}.post_attention_layernorm",
    "layers.{}.mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
}
_NORMS_BEFORE = ("layers.{}.attention_norm", "layers.{}.mlp_norm")


def _read_spec(config: Any) -> ModelSpec:
    norm, bias = replace(read_norm(config), is_float32=True), bool(config.attention_bias)
    mlp = read_mlp(config, bias=False)
    layers = []
    # Layers with a window have a rotary embedding of their own: YaRN is for the others.
    for layer_type in read_layer_types(config):
        attention = read_attention(
            config, qkv_bias=bias, output_bias=bias, qk_norm=None, layer_type=layer_type
        )
        attention = replace(attention, whole_qk_norm=norm)
        layers.append(LayerSpec(attention=attention, mlp=mlp, norm=None, post_norm=norm))
    return replace(make_spec(config, window_by_type(config, layers)), final_norm=norm)


OLMO3 = FamilyDefinition(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    read_spec=_read_spec,
    weight_names={
        **{part: name for part, name in DECODER_NAMES.items() if part not in _NORMS_BEFORE},
        **QK_NORM_NAMES,
        **_NORM_NAMES,
    },
)
