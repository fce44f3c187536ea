"""Qwen3, and the language model of Qwen3-VL: a norm on each head of queries and keys."""

from dataclasses import replace
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


def _read_qwen3(config: Any) -> ModelSpec:
    return make_spec(config, window_by_type(config, _read_layers(config)))


def _read_qwen3_vl(config: Any) -> ModelSpec:
    # The three positions of a token of text are one: it is rotated as by a plain embedding.
    return make_spec(config, _read_layers(config))


def _read_layers(config: Any) -> tuple[LayerSpec, ...]:
    norm, bias = read_norm(config), bool(config.attention_bias)
    layer = LayerSpec(
        attention=read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=norm),
        mlp=read_mlp(config, bias=False),
        norm=norm,
    )
    return (layer,) * config.num_hidden_layers


QWEN3 = FamilyDefinition(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    read_spec=_read_qwen3,
    weight_names={**DECODER_NAMES, **QK_NORM_NAMES},
)
QWEN3_VL = replace(
    QWEN3,
    model_type="qwen3_vl",
    architecture="Qwen3VLForConditionalGeneration",
    text_section="text_config",
    read_spec=_read_qwen3_vl,
)
"""Its language model alone: what only images need is left in the checkpoint."""
