"""Parts of a config that several families share, checked against what the decoder can do.

All functions take the config as transformers reads it and raise CheckpointError.
"""

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
    """Full attention, the same in all layers."""
    rope = read_rope(config)
    _require_full_attention(config)

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


def _require_full_attention(config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    # Qwen2 and Qwen3 say per layer whether it uses the window; in Mixtral every layer does.
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    is_windowed = layer_types != {"full_attention"} or not hasattr(config, "layer_types")

    # A window that no context outgrows is never noticed.
    context = longest_context(config)
    if window is not None and is_windowed and window < context:
        raise CheckpointError(
            f"The model uses a sliding window of {window} tokens, and its context is {context}; "
            f"only full attention is supported. Use a model without a window."
        )
