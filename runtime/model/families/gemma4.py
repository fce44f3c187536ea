"""Gemma 4: layers that see all have heads of another width and number than those with a window."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_glu,
    read_layer_types,
    read_norm,
    read_soft_cap,
    require_enough_experts,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import (
    DECODER_NAMES,
    FOUR_NORM_NAMES,
    QK_NORM_NAMES,
)
from raydix.runtime.model.formats.restoring import Tensors, take_experts_apart
from raydix.runtime.model.spec.rope_spec import REMEDY
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LayerInputSpec,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
    NormSpec,
    ValueSpec,
)

_NAMES: Mapping[str, str] = {
    "layers.{}": "model.layers.{}",
    "layers.{}.input.gate": "model.layers.{}.per_layer_input_gate",
    "layers.{}.input.output": "model.layers.{}.per_layer_projection",
    "layers.{}.input.norm": "model.layers.{}.post_per_layer_input_norm",
    "layers.{}.shared_post_norm": "model.layers.{}.post_feedforward_layernorm_1",
    "layers.{}.routed_post_norm": "model.layers.{}.post_feedforward_layernorm_2",
    "layers.{}.mlp.shared_norm": "model.layers.{}.pre_feedforward_layernorm",
    "layers.{}.mlp.shared.gate": "model.layers.{}.mlp.gate_proj",
    "layers.{}.mlp.shared.up": "model.layers.{}.mlp.up_proj",
    "layers.{}.mlp.shared.down": "model.layers.{}.mlp.down_proj",
    "layers.{}.mlp.routed_norm": "model.layers.{}.pre_feedforward_layernorm_2",
    "layers.{}.mlp.router_norm": "model.layers.{}.router.norm",
    "layers.{}.mlp.router": "model.layers.{}.router.proj",
    "layers.{}.mlp.experts.{}.gate": "model.layers.{}.experts.{}.gate_proj",
    "layers.{}.mlp.experts.{}.up": "model.layers.{}.experts.{}.up_proj",
    "layers.{}.mlp.experts.{}.down": "model.layers.{}.experts.{}.down_proj",
    "layer_inputs.table": "model.embed_tokens_per_layer",
    "layer_inputs.projection": "model.per_layer_model_projection",
    "layer_inputs.norm": "model.per_layer_projection_norm",
}
"""The layer itself has a tensor, `layer_scalar`."""


def _read_spec(config: Any) -> ModelSpec:
    _require_supported(config)
    norm = replace(read_norm(config), is_float32=True)
    sources = _read_sources(config)
    layers = [
        LayerSpec(
            attention=replace(_read_attention(config, layer, norm), source_layer=source),
            mlp=_read_mlp(config, norm, has_source=source is not None),
            norm=norm,
            post_norm=norm,
            has_output_scale=True,
        )
        for layer, source in enumerate(sources)
    ]
    return replace(
        make_spec(config, window_by_type(config, layers)),
        final_norm=norm,
        embedding_scale=config.hidden_size**0.5,
        logits_soft_cap=read_soft_cap(config, "final_logit_softcapping"),
        layer_inputs=_read_layer_inputs(config, norm),
    )


def _read_sources(config: Any) -> list[int | None]:
    """The layer whose keys and values each layer reads, the last of its type with own ones."""
    types, num_shared = read_layer_types(config), config.num_kv_shared_layers
    num_own = len(types) - num_shared
    last = {layer_type: layer for layer, layer_type in enumerate(types[: max(num_own, 0)])}
    if num_shared < 0 or set(last) != set(types):
        raise CheckpointError(
            f"num_kv_shared_layers is {num_shared} of {len(types)} layers; expected layers of each "
            f"type before those, whose keys and values they share. {REMEDY}"
        )
    return [None] * num_own + [last[each] for each in types[num_own:]]


def _read_mlp(config: Any, norm: NormSpec, *, has_source: bool) -> DenseMlpSpec | MoeMlpSpec:
    """The feed-forward. `has_source`: whether keys and values are those of another layer."""
    is_double = has_source and config.use_double_wide_mlp
    glu = read_glu(config.hidden_activation)
    dense = DenseMlpSpec(
        intermediate_size=config.intermediate_size * (2 if is_double else 1), bias=False, glu=glu
    )
    if not getattr(config, "enable_moe_block", False):
        return dense

    for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        if getattr(config, name) is None:
            raise CheckpointError(f"{name} is null; expected a whole number from 1. {REMEDY}")
    require_enough_experts(config.top_k_experts, config.num_experts)
    return MoeMlpSpec(
        num_experts=config.num_experts,
        experts_per_token=config.top_k_experts,
        intermediate_size=config.moe_intermediate_size,
        routing=SoftmaxRouting(renormalise=True, has_expert_scales=True),
        shared=dense,
        own_norm=norm,
        glu=glu,
    )


def _read_layer_inputs(config: Any, norm: NormSpec) -> LayerInputSpec | None:
    size = getattr(config, "hidden_size_per_layer_input", None)
    if not size:
        return None
    vocab_size = config.vocab_size_per_layer_input
    if vocab_size < config.vocab_size:
        raise CheckpointError(
            f"vocab_size_per_layer_input is {vocab_size}; expected at least vocab_size, "
            f"{config.vocab_size}. {REMEDY}"
        )
    return LayerInputSpec(
        size=size,
        vocab_size=vocab_size,
        norm=norm,
        glu=read_glu(config.hidden_activation),
    )


def _read_attention(config: Any, layer: int, norm: NormSpec) -> AttentionSpec:
    bias, layer_type = bool(config.attention_bias), config.layer_types[layer]
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


def _restore(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """Take experts apart, and call the tensors of routers what the decoder asks for."""
    for name, tensor in take_experts_apart(tensors):
        if name.endswith(".router.scale"):
            # It multiplies what a norm without a weight leaves, together with this root.
            weight = tensor.float() * tensor.shape[-1] ** -0.5
            yield name.removesuffix("scale") + "norm.weight", weight
        elif name.endswith(".router.per_expert_scale"):
            yield name.removesuffix("per_expert_scale") + "proj.expert_scales", tensor
        else:
            yield name, tensor


GEMMA4 = FamilyDefinition(
    model_type="gemma4_text",
    architecture="Gemma4ForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **FOUR_NORM_NAMES, **QK_NORM_NAMES, **_NAMES},
    restore=_restore,
)
GEMMA4_WITH_TOWERS = replace(
    GEMMA4,
    model_type="gemma4",
    architecture="Gemma4ForConditionalGeneration",
    text_section="text_config",
)
"""Its language model alone: what only images and sounds need is left in the checkpoint."""
GEMMA4_UNIFIED_TEXT = replace(
    GEMMA4, model_type="gemma4_unified_text", architecture="Gemma4UnifiedForCausalLM"
)
"""It has neither experts nor inputs of layers, and its config knows nothing of them."""
GEMMA4_UNIFIED = replace(
    GEMMA4_WITH_TOWERS,
    model_type="gemma4_unified",
    architecture="Gemma4UnifiedForConditionalGeneration",
)
