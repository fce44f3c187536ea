"""MiMo-V2-Flash: values narrower than keys, and window layers with more KV heads and with sinks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_layer_types,
    read_mlp,
    read_norm,
    read_partly_rotated_attention,
    require_value,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.many_experts import read_corrected_routing, read_experts
from raydix.runtime.model.families.weight_names import DECODER_NAMES, EXPERT_NAMES
from raydix.runtime.model.formats.restoring import Tensors
from raydix.runtime.model.spec.rope_spec import REMEDY, rotary_part
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
    ValueSpec,
)

_SINKS: Mapping[str, str] = {"layers.{}.attention": "model.layers.{}.self_attn"}
_THETAS: Mapping[str, str] = {
    "rope_theta": "full_attention",
    "swa_rope_theta": "sliding_attention",
}
_ROTARY_FACTOR = 0.334
"""The part of each head that is rotated, where the config does not say."""
_WINDOW_HEADS = 2
"""The KV heads of a window layer for each of a layer that sees all."""


def _read_spec(config: Any) -> ModelSpec:
    types, mlp_types, norm = read_layer_types(config), config.mlp_layer_types, read_norm(config)
    attentions = {each: _read_attention(config, each) for each in sorted(set(types))}
    _require_consistent(config, types, attentions)
    if len(mlp_types) != len(types):
        raise CheckpointError(
            f"mlp_layer_types is {mlp_types}; expected one for each of {len(types)} layers. "
            f"{REMEDY}"
        )
    layers = [
        LayerSpec(attention=attentions[layer_type], mlp=_read_mlp(config, mlp_type), norm=norm)
        for layer_type, mlp_type in zip(types, mlp_types, strict=True)
    ]
    return make_spec(config, window_by_type(config, layers))


def _read_attention(config: Any, layer_type: str) -> AttentionSpec:
    attention = read_partly_rotated_attention(
        config,
        qkv_bias=bool(config.attention_bias),
        output_bias=False,
        qk_norm=None,
        layer_type=layer_type,
    )
    value_dim, scale = config.v_head_dim, config.attention_value_scale
    if value_dim > attention.head_dim:
        raise CheckpointError(
            f"v_head_dim is {value_dim}; expected at most head_dim, {attention.head_dim}."
        )
    parameters = {"partial_rotary_factor": _ROTARY_FACTOR, **config.rope_parameters[layer_type]}
    require_value(
        "partial_rotary_factor",
        getattr(config, "partial_rotary_factor", parameters["partial_rotary_factor"]),
        parameters["partial_rotary_factor"],
    )
    attention = replace(
        attention,
        values=ValueSpec(head_dim=value_dim, scale=1.0 if scale is None else float(scale)),
        rotary_dim=rotary_part(attention.rope, parameters, attention.head_dim),
    )
    if layer_type == "full_attention":
        return attention

    num_kv_heads = _WINDOW_HEADS * attention.num_kv_heads
    if attention.num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads is {attention.num_heads}; expected a multiple of twice "
            f"num_key_value_heads, {num_kv_heads}, the KV heads of window layers. {REMEDY}"
        )
    return replace(attention, num_kv_heads=num_kv_heads, has_sinks=True)


def _read_mlp(config: Any, mlp_type: str) -> DenseMlpSpec | MoeMlpSpec:
    match mlp_type:
        case "dense":
            return read_mlp(config, bias=False)
        case "sparse":
            return read_experts(config, read_corrected_routing(config), None)
        case other:
            raise CheckpointError(
                f"mlp_layer_types has {other!r}; expected 'dense' or 'sparse'. {REMEDY}"
            )


def _require_consistent(
    config: Any, types: Sequence[str], attentions: Mapping[str, AttentionSpec]
) -> None:
    """Raise CheckpointError if a field says something else than what follows from others.

    Published files have these fields, and transformers does not read them.
    """
    thetas = {
        name: attentions[layer_type].rope.theta
        for name, layer_type in _THETAS.items()
        if layer_type in attentions
    }
    expected = {
        **thetas,
        "hybrid_layer_pattern": [int(each == "sliding_attention") for each in types],
        "moe_layer_freq": [int(each == "sparse") for each in config.mlp_layer_types],
        "swa_num_attention_heads": config.num_attention_heads,
        "swa_num_key_value_heads": _WINDOW_HEADS * config.num_key_value_heads,
        "swa_head_dim": config.head_dim,
        "swa_v_head_dim": config.v_head_dim,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "layernorm_epsilon": config.rms_norm_eps,
        "n_shared_experts": None,
    }
    for name, value in expected.items():
        require_value(name, getattr(config, name, value), value)


def _restore(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """Call sinks what other families call them."""
    for name, tensor in tensors:
        yield name.replace(".attention_sink_bias", ".sinks"), tensor


MIMO_V2_FLASH = FamilyDefinition(
    model_type="mimo_v2_flash",
    architecture="MiMoV2FlashForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **EXPERT_NAMES, **_SINKS},
    restore=_restore,
)
