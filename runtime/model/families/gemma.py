"""Gemma: a norm before and after attention and feed-forward, soft caps, scaled embeddings."""

from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_glu,
    read_layer_types,
    read_norm,
    read_positive,
    read_soft_cap,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import (
    DECODER_NAMES,
    FOUR_NORM_NAMES,
    QK_NORM_NAMES,
)
from raydix.runtime.model.formats.restoring import Tensors
from raydix.runtime.model.spec.rope_spec import REMEDY
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
)


def _read_gemma2(config: Any) -> ModelSpec:
    bias = bool(config.attention_bias)
    attention = replace(
        read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=None),
        soft_cap=read_soft_cap(config, "attn_logit_softcapping"),
    )
    return _make_spec(config, [attention] * config.num_hidden_layers)


def _read_gemma3(config: Any) -> ModelSpec:
    if config.attn_logit_softcapping is not None:
        raise CheckpointError(
            f"attn_logit_softcapping is {config.attn_logit_softcapping}; Gemma 3 has none. {REMEDY}"
        )
    norm, bias = _read_norm(config), bool(config.attention_bias)
    types = read_layer_types(config)
    attentions = {
        each: read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=norm, layer_type=each)
        for each in sorted(set(types))
    }
    return _make_spec(config, [attentions[each] for each in types])


def _make_spec(config: Any, attentions: list[AttentionSpec]) -> ModelSpec:
    """A model whose layers attend so, but for the windows."""
    if config.use_bidirectional_attention:
        raise CheckpointError(
            "use_bidirectional_attention is true; only causal attention is supported."
        )

    norm = _read_norm(config)
    mlp = DenseMlpSpec(
        intermediate_size=config.intermediate_size,
        bias=False,
        glu=read_glu(config.hidden_activation),
    )
    scale = read_positive(config, "query_pre_attn_scalar") ** -0.5
    layers = [
        LayerSpec(attention=replace(each, scale=scale), mlp=mlp, norm=norm, post_norm=norm)
        for each in attentions
    ]

    return replace(
        make_spec(config, window_by_type(config, layers)),
        final_norm=norm,
        embedding_scale=config.hidden_size**0.5,
        logits_soft_cap=read_soft_cap(config, "final_logit_softcapping"),
    )


def _read_norm(config: Any) -> NormSpec:
    return replace(read_norm(config), is_offset=True, is_float32=True)


def _restore(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """Weights of norms are stored less one (`NormSpec.is_offset`)."""
    for name, tensor in tensors:
        yield name, tensor.float() + 1.0 if name.endswith("norm.weight") else tensor


GEMMA2 = FamilyDefinition(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    read_spec=_read_gemma2,
    weight_names={**DECODER_NAMES, **FOUR_NORM_NAMES},
    restore=_restore,
)
GEMMA3 = FamilyDefinition(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    read_spec=_read_gemma3,
    weight_names={**DECODER_NAMES, **FOUR_NORM_NAMES, **QK_NORM_NAMES},
    restore=_restore,
)
GEMMA3_WITH_VISION = replace(
    GEMMA3,
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    text_section="text_config",
)
"""Its language model alone: what only images need is left in the checkpoint."""
