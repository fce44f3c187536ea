"""Gemma 4: layers that see all have heads of another width and number than those with a window."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_glu,
    read_layer_types,
    read_norm,
    read_soft_cap,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import (
    DECODER_NAMES,
    FOUR_NORM_NAMES,
    QK_NORM_NAMES,
)
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
    ValueSpec,
)

_OWN_NAMES: Mapping[str, str] = {"layers.{}": "model.layers.{}"}
"""The layer itself has a tensor, `layer_scalar`."""


def _read_spec(config: Any) -> ModelSpec:
    _require_supported(config)
    norm = replace(read_norm(config), is_float32=True)
    types = read_layer_types(config)
    mlp = DenseMlpSpec(
        intermediate_size=config.intermediate_size,
        bias=False,
        glu=read_glu(config.hidden_activation),
    )
    layers = [
        LayerSpec(
            attention=_read_attention(config, layer, layer_type, norm),
            mlp=mlp,
            norm=norm,
            post_norm=norm,
            has_output_scale=True,
        )
        for layer, layer_type in enumerate(types)
    ]
    return replace(
        make_spec(config, window_by_type(config, layers)),
        final_norm=norm,
        embedding_scale=config.hidden_size**0.5,
        logits_soft_cap=read_soft_cap(config, "final_logit_softcapping"),
    )


def _read_attention(config: Any, layer: int, layer_type: str, norm: NormSpec) -> AttentionSpec:
    bias = bool(config.attention_bias)
    attention = read_attention(
        config.per_layer_config[layer],
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=norm,
        layer_type=layer_type,
    )
    values = ValueSpec(
        head_dim=attention.head_dim,
        are_keys=config.attention_k_eq_v and layer_type == "full_attention",
        norm=replace(norm, has_weight=False),
    )
    return replace(attention, scale=1.0, values=values)


def _require_supported(config: Any) -> None:
    # What is said of "vision" concerns images alone.
    if config.use_bidirectional_attention == "all":
        raise CheckpointError(
            "use_bidirectional_attention is 'all'; only causal attention is supported."
        )
    for name in ("num_kv_shared_layers", "hidden_size_per_layer_input", "enable_moe_block"):
        if found := getattr(config, name):
            raise CheckpointError(
                f"{name} is {found}; of Gemma 4 only models without are supported."
            )


GEMMA4 = FamilyDefinition(
    model_type="gemma4_text",
    architecture="Gemma4ForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **FOUR_NORM_NAMES, **QK_NORM_NAMES, **_OWN_NAMES},
)
GEMMA4_WITH_TOWERS = replace(
    GEMMA4,
    model_type="gemma4",
    architecture="Gemma4ForConditionalGeneration",
    text_section="text_config",
)
"""Its language model alone: what only images and sounds need is left in the checkpoint."""
