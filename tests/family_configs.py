"""Configs that are more than their fields: with a tiny tower, or with what follows from others."""

from collections.abc import Callable
from typing import Any

from transformers import (
    DeepseekV3Config,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedTextConfig,
    Kimi_K25Config,
    Ministral3Config,
    Mistral3Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
    Qwen3VLMoeTextConfig,
    Qwen3VLTextConfig,
)


def gemma3_with_tower(**fields: Any) -> PreTrainedConfig:
    """A Gemma 3 whose language model has these fields, beside a tiny tower for images."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes = {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    return Gemma3Config(
        text_config=Gemma3TextConfig(**fields).to_dict(),
        vision_config={"model_type": "siglip_vision_model", **vision, **sizes},
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )


def gemma4_with_tower(**fields: Any) -> PreTrainedConfig:
    """A Gemma 4 whose language model has these fields, beside a tiny tower for images."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "patch_size": 4}
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    return Gemma4Config(
        # It puts this token where an image was, and does so even if there was none.
        text_config=Gemma4TextConfig(**{**fields, "pad_token_id": 0}).to_dict(),
        vision_config={"model_type": "gemma4_vision", **vision, **sizes},
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )


def gemma4_unified(**fields: Any) -> PreTrainedConfig:
    """A Gemma 4 that embeds images itself, whose language model has these fields."""
    return Gemma4UnifiedConfig(
        # It puts this token where an image was, and does so even if there was none.
        text_config=Gemma4UnifiedTextConfig(**{**fields, "pad_token_id": 0}).to_dict(),
        vision_config={"model_type": "gemma4_unified_vision", "mm_embed_dim": 16, "patch_size": 2},
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )


def qwen3_5(whole: Callable[..., PreTrainedConfig], fields: dict[str, Any]) -> PreTrainedConfig:
    """A Qwen3.5 whose language model has these fields, beside a tiny tower for images."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}
    sizes = {"out_hidden_size": fields["hidden_size"], "num_position_embeddings": 16}
    return whole(
        text_config=fields,
        vision_config={**vision, **sizes},
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
    )


def olmo3(**fields: Any) -> PreTrainedConfig:
    """An OLMo 3 every other layer of which has a window."""
    types = ["sliding_attention", "full_attention"] * fields["num_hidden_layers"]
    return Olmo3Config(**fields, layer_types=types[: fields["num_hidden_layers"]])


def kimi_k25(**fields: Any) -> PreTrainedConfig:
    """A Kimi-K2.5 whose language model has these fields, beside a tiny tower for images."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return Kimi_K25Config(
        text_config=DeepseekV3Config(**fields).to_dict(),
        vision_config={**vision, "num_attention_heads": 2, "patch_size": 4},
        projection_hidden_size=16,
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
    )


def mistral3(**fields: Any) -> PreTrainedConfig:
    """A Mistral 3 whose language model has these fields, beside a tiny tower for images."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    sizes = {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    return Mistral3Config(
        text_config=Ministral3Config(**fields).to_dict(),
        vision_config={"model_type": "pixtral", **vision, **sizes},
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
    )


def qwen3_vl(**fields: Any) -> PreTrainedConfig:
    """A Qwen3-VL whose language model has these fields, beside a tiny tower for images."""
    return _beside_tower(Qwen3VLConfig, Qwen3VLTextConfig(**fields), fields)


def qwen3_vl_moe(**fields: Any) -> PreTrainedConfig:
    """The same with experts."""
    return _beside_tower(Qwen3VLMoeConfig, Qwen3VLMoeTextConfig(**fields), fields)


def _beside_tower(
    whole: Callable[..., PreTrainedConfig], text: PreTrainedConfig, fields: dict[str, Any]
) -> PreTrainedConfig:
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}
    joined = {"out_hidden_size": fields["hidden_size"], "deepstack_visual_indexes": [0]}
    return whole(
        text_config=text.to_dict(),
        vision_config={**vision, **joined},
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
    )


def phi3(**fields: Any) -> PreTrainedConfig:
    """A Phi-3 that rotates half of each head, by the long factors from the second token on.

    The first is not turned at all, so that transformers, which changes factors, agrees (5.23 does,
    5.17 not). So it does if `fields` have an original context that no request outgrows.
    """
    original = fields.pop("original_max_position_embeddings", 1)
    num_pairs = fields["hidden_size"] // fields["num_attention_heads"] // 4
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": original,
        "attention_factor": 1.1,
        "short_factor": [1.0] * num_pairs,
        "long_factor": [1.5 + pair for pair in range(num_pairs)],
    }
    return Phi3Config(**fields, rope_parameters=rope, original_max_position_embeddings=original)
