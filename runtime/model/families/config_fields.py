"""Parts of a config that several families share, checked against what the decoder can do.

All functions take the config as transformers reads it and raise CheckpointError.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.rope_spec import REMEDY, longest_context, read_rope
from raydix.runtime.model.spec import AttentionSpec, LayerSpec, ModelSpec, NormSpec


def make_spec(config: Any, layers: tuple[LayerSpec, ...]) -> ModelSpec:
    """A model of these layers."""
    if config.hidden_act != "silu":
        raise CheckpointError(f"hidden_act is {config.hidden_act!r}; only 'silu' is supported.")
    return ModelSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=layers,
        final_norm=read_norm(config),
        tied_embeddings=bool(config.tie_word_embeddings),
    )


def read_norm(config: Any) -> NormSpec:
    """The norm that the whole model uses."""
    return NormSpec(eps=config.rms_norm_eps)


def read_attention(
    config: Any, *, qkv_bias: bool, output_bias: bool, qk_norm: NormSpec | None
) -> AttentionSpec:
    """Attention over all tokens before, the same in all layers."""
    rope = read_rope(config.rope_parameters, config.max_position_embeddings)
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    is_whole = isinstance(head_dim, int) and not isinstance(head_dim, bool)
    if not is_whole or head_dim < 2 or head_dim % 2 or num_heads % num_kv_heads:
        raise CheckpointError(
            f"head_dim is {head_dim}, num_attention_heads {num_heads}, num_key_value_heads "
            f"{num_kv_heads}; expected an even head_dim and whole query groups per KV head. "
            f"{REMEDY}"
        )

    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope=rope,
        scale=head_dim**-0.5,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )


def require_enough_experts(experts_per_token: int, num_experts: int) -> None:
    """Raise CheckpointError if a token is to visit more experts than there are."""
    if experts_per_token > num_experts:
        raise CheckpointError(
            f"num_experts_per_tok is {experts_per_token}; expected at most the number of experts, "
            f"{num_experts}. {REMEDY}"
        )


def window_in_all(config: Any, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """These layers with the config's window, if it has one."""
    return _with_windows(config, layers, [config.sliding_window] * len(layers))


def window_by_type(config: Any, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """These layers, of which those that `layer_types` names have the config's window."""
    types = config.layer_types
    if len(types) != len(layers) or not set(types) <= {"full_attention", "sliding_attention"}:
        raise CheckpointError(
            f"layer_types is {types}; expected 'full_attention' or 'sliding_attention' for each of "
            f"the {len(layers)} layers. {REMEDY}"
        )
    windows = [config.sliding_window if each == "sliding_attention" else None for each in types]
    return _with_windows(config, layers, windows)


def _with_windows(
    config: Any, layers: Sequence[LayerSpec], windows: Sequence[int | None]
) -> tuple[LayerSpec, ...]:
    ropes = [layer.attention.rope for layer in layers]
    context = longest_context(ropes, config.max_position_embeddings)
    return tuple(
        # A window that no context outgrows is never noticed, and pages of full attention are
        # found at every prefix.
        layer
        if window is None or window >= context
        else replace(layer, attention=replace(layer.attention, window=window))
        for layer, window in zip(layers, windows, strict=True)
    )
