"""Seed-OSS: as Llama, with biases of queries, keys and values apart from that of the output."""

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
    layer = LayerSpec(
        attention=read_attention(
            config,
            qkv_bias=bool(config.attention_bias),
            output_bias=bool(config.attention_out_bias),
            qk_norm=None,
        ),
        mlp=read_mlp(config, bias=bool(config.mlp_bias)),
        norm=read_norm(config),
    )
    return make_spec(config, (layer,) * config.num_hidden_layers)


SEED_OSS = FamilyDefinition(
    model_type="seed_oss",
    architecture="SeedOssForCausalLM",
    read_spec=_read_spec,
    weight_names=DECODER_NAMES,
)
