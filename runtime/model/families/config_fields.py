"""Parts of a config that several families share, checked against what the decoder can do.

All functions take the config as transformers reads it and raise CheckpointError.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.kernels.dense.glu_form import GeluTanhGlu, GluForm, SiluGlu
from raydix.runtime.model.spec.rope_spec import (
    REMEDY,
    longest_context,
    read_rope,
    rotary_part,
)
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
    ropes_of,
)


def make_spec(config: Any, layers: tuple[LayerSpec, ...]) -> ModelSpec:
    """A model of these layers."""
    return ModelSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=layers,
        final_norm=read_norm(config),
        # Some sections of language models do not say it: the whole config does.
        tied_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
    )


def read_norm(config: Any) -> NormSpec:
    """The norm that the whole model uses."""
    return NormSpec(eps=config.rms_norm_eps)


def read_mlp(config: Any, *, bias: bool) -> DenseMlpSpec:
    """A dense feed-forward."""
    return DenseMlpSpec(
        intermediate_size=config.intermediate_size, bias=bias, glu=read_glu(config.hidden_act)
    )


def read_glu(name: str) -> GluForm:
    """The feed-forward whose gate has an activation of this name."""
    match name:
        case "silu":
            return SiluGlu()
        case "gelu_pytorch_tanh":
            return GeluTanhGlu()
        case _:
            raise CheckpointError(
                f"The activation is {name!r}; supported are 'silu' and 'gelu_pytorch_tanh'."
            )


def read_soft_cap(config: Any, name: str) -> float | None:
    """The bound of scores or logits of that name; None if there is none."""
    return None if getattr(config, name) is None else read_positive(config, name)


def read_positive(config: Any, name: str, default: float | None = None) -> float:
    """A number above 0. `default`: where the library that reads configs does not know the field."""
    value = getattr(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(f"{name} is {value!r}; expected a number above 0. {REMEDY}")
    return float(value)


def read_attention(
    config: Any,
    *,
    qkv_bias: bool,
    output_bias: bool,
    qk_norm: NormSpec | None,
    layer_type: str | None = None,
) -> AttentionSpec:
    """Attention over all tokens before, of a family that rotates whole heads.

    `layer_type`: that of the layers, if those of each type have their own rotary parameters.
    """
    attention = read_partly_rotated_attention(
        config, qkv_bias=qkv_bias, output_bias=output_bias, qk_norm=qk_norm, layer_type=layer_type
    )
    if attention.rotary_dim is not None:
        raise CheckpointError(
            f"partial_rotary_factor asks for {attention.rotary_dim} of {attention.head_dim} dims; "
            f"of a {config.model_type} only models that rotate whole heads are supported."
        )
    return attention


def read_partly_rotated_attention(
    config: Any,
    *,
    qkv_bias: bool,
    output_bias: bool,
    qk_norm: NormSpec | None,
    layer_type: str | None = None,
) -> AttentionSpec:
    """The same, of a family whose configs may rotate a part of each head."""
    parameters = _rope_parameters(config, layer_type)
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    is_whole = isinstance(head_dim, int) and not isinstance(head_dim, bool)
    if not is_whole or head_dim < 2 or head_dim % 2 or num_heads % num_kv_heads:
        raise CheckpointError(
            f"head_dim is {head_dim}, num_attention_heads {num_heads}, num_key_value_heads "
            f"{num_kv_heads}; expected an even head_dim and whole query groups per KV head. "
            f"{REMEDY}"
        )

    rope = read_rope(parameters, config.max_position_embeddings)
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope=rope,
        scale=head_dim**-0.5,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        rotary_dim=rotary_part(rope, parameters, head_dim),
    )


def _rope_parameters(config: Any, layer_type: str | None) -> object:
    parameters = config.rope_parameters
    if layer_type is None:
        return parameters
    return parameters.get(layer_type) if isinstance(parameters, Mapping) else None


def require_enough_experts(experts_per_token: int, num_experts: int) -> None:
    """Raise CheckpointError if a token is to visit more experts than there are."""
    if experts_per_token > num_experts:
        raise CheckpointError(
            f"num_experts_per_tok is {experts_per_token}; expected at most the number of experts, "
            f"{num_experts}. {REMEDY}"
        )


def require_value(name: str, found: object, expected: object) -> None:
    """Raise CheckpointError for another value of a field than the one that is supported."""
    if found != expected:
        raise CheckpointError(f"{name} is {found!r}; only {expected!r} is supported.")


def window_in_all(config: Any, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """These layers with the config's window, if it has one."""
    only = "full_attention" if config.sliding_window is None else "sliding_attention"
    types = getattr(config, "layer_types", None)
    # Transformers leaves out what these families do not read, and implementations differ.
    if types is not None and any(each != only for each in types):
        raise CheckpointError(
            f"layer_types is {types}, sliding_window {config.sliding_window}; expected {only!r} "
            f"for all layers of a {config.model_type}. {REMEDY}"
        )
    return _with_windows(config, layers, [config.sliding_window] * len(layers))


def read_layer_types(config: Any) -> Sequence[str]:
    """Which layers have the config's window: those of type `sliding_attention`."""
    types: Sequence[str] = config.layer_types
    num_layers = config.num_hidden_layers
    if len(types) != num_layers or not set(types) <= {"full_attention", "sliding_attention"}:
        raise CheckpointError(
            f"layer_types is {types}; expected 'full_attention' or 'sliding_attention' for each of "
            f"the {num_layers} layers. {REMEDY}"
        )
    if "sliding_attention" in types and config.sliding_window is None:
        raise CheckpointError(
            f"sliding_window is None, but layer_types has 'sliding_attention'; expected a whole "
            f"number from 1, or no such layers. {REMEDY}"
        )
    return types


def window_by_type(config: Any, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """These layers, of which those that `layer_types` names have the config's window."""
    types = read_layer_types(config)
    windows = [config.sliding_window if each == "sliding_attention" else None for each in types]
    return _with_windows(config, layers, windows)


def _with_windows(
    config: Any, layers: Sequence[LayerSpec], windows: Sequence[int | None]
) -> tuple[LayerSpec, ...]:
    # Qwen2-MoE's configs have a window of 0 where no layer has any.
    if any(window is not None and window < 1 for window in windows):
        raise CheckpointError(
            f"sliding_window is {config.sliding_window}; expected a whole number from 1. {REMEDY}"
        )
    ropes = ropes_of(layers)
    context = longest_context(ropes, config.max_position_embeddings)
    return tuple(
        # A window that no context outgrows is never noticed, and pages of full attention are
        # found at every prefix.
        layer if window is None or window >= context else _with_window(layer, window)
        for layer, window in zip(layers, windows, strict=True)
    )


def _with_window(layer: LayerSpec, window: int) -> LayerSpec:
    assert isinstance(layer.attention, AttentionSpec), "latent attention has no window"
    return replace(layer, attention=replace(layer.attention, window=window))
