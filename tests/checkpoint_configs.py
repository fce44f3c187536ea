"""Small configs of every family, as transformers has them."""

from collections.abc import Callable
from typing import Any

from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    MiMoV2FlashConfig,
    MiniMaxM2Config,
    MistralConfig,
    MixtralConfig,
    Olmo3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SeedOssConfig,
)

from raydix.runtime.model.families.table import Family


def _with_vision(**fields: Any) -> PreTrainedConfig:
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


def _with_towers(**fields: Any) -> PreTrainedConfig:
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


def _olmo3(**fields: Any) -> PreTrainedConfig:
    """An OLMo 3 every other layer of which has a window."""
    types = ["sliding_attention", "full_attention"] * fields["num_hidden_layers"]
    return Olmo3Config(**fields, layer_types=types[: fields["num_hidden_layers"]])


def _qwen3_5(whole: Callable[..., PreTrainedConfig], fields: dict[str, Any]) -> PreTrainedConfig:
    """A Qwen3.5 whose language model has these fields, beside a tiny tower for images."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}
    sizes = {"out_hidden_size": fields["hidden_size"], "num_position_embeddings": 16}
    return whole(
        text_config=fields,
        vision_config={**vision, **sizes},
        initializer_range=fields["initializer_range"],
        tie_word_embeddings=fields["tie_word_embeddings"],
    )


CONFIGS: dict[Family, Callable[..., PreTrainedConfig]] = {
    Family.LLAMA: LlamaConfig,
    Family.QWEN2: Qwen2Config,
    Family.QWEN3: Qwen3Config,
    Family.QWEN3_MOE: Qwen3MoeConfig,
    Family.QWEN3_5: lambda **fields: _qwen3_5(Qwen3_5Config, fields),
    Family.QWEN3_5_MOE: lambda **fields: _qwen3_5(Qwen3_5MoeConfig, fields),
    Family.QWEN3_5_MOE_TEXT: Qwen3_5MoeTextConfig,
    Family.QWEN3_NEXT: Qwen3NextConfig,
    Family.QWEN3_5_TEXT: Qwen3_5TextConfig,
    Family.MISTRAL: MistralConfig,
    Family.MIXTRAL: MixtralConfig,
    Family.DEEPSEEK_V2: DeepseekV2Config,
    Family.DEEPSEEK_V3: DeepseekV3Config,
    Family.GEMMA2: Gemma2Config,
    Family.GEMMA3: Gemma3TextConfig,
    Family.GEMMA3_WITH_VISION: _with_vision,
    Family.GEMMA4: Gemma4TextConfig,
    Family.GEMMA4_WITH_TOWERS: _with_towers,
    Family.GPT_OSS: GptOssConfig,
    Family.GLM4_MOE: Glm4MoeConfig,
    Family.MINIMAX_M2: MiniMaxM2Config,
    Family.OLMO3: _olmo3,
    Family.QWEN2_MOE: Qwen2MoeConfig,
    Family.SEED_OSS: SeedOssConfig,
    Family.MIMO_V2_FLASH: MiMoV2FlashConfig,
}
COMMON = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_DEEPSEEK = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}
_GEMMA3 = {
    "head_dim": 12,
    "query_pre_attn_scalar": 10,
    "sliding_window": 20,
    "sliding_window_pattern": 2,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
    },
}
_GEMMA4 = {
    "head_dim": 12,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 20,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1000.0,
            "partial_rotary_factor": 0.25,
        },
    },
}
_QWEN3_5 = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 10,
    "full_attention_interval": 2,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.25,
    },
}
_QWEN3_5_MOE = {
    **_QWEN3_5,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
}
PER_FAMILY: dict[Family, dict[str, Any]] = {
    Family.LLAMA: {},
    Family.QWEN2: {},
    Family.QWEN3: {"head_dim": 12},
    Family.QWEN3_MOE: {
        "head_dim": 12,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
    },
    Family.QWEN3_5: _QWEN3_5,
    Family.QWEN3_5_MOE: _QWEN3_5_MOE,
    Family.QWEN3_5_MOE_TEXT: _QWEN3_5_MOE,
    Family.QWEN3_NEXT: _QWEN3_5_MOE,
    Family.QWEN3_5_TEXT: _QWEN3_5,
    Family.MISTRAL: {"sliding_window": 20},
    Family.MIXTRAL: {"num_local_experts": 5, "num_experts_per_tok": 2},
    Family.DEEPSEEK_V2: {
        **_DEEPSEEK,
        "q_lora_rank": None,
        "topk_method": "greedy",
        "routed_scaling_factor": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    },
    Family.DEEPSEEK_V3: {
        **_DEEPSEEK,
        "q_lora_rank": 14,
        "routed_scaling_factor": 2.5,
        "num_mtp_layers": 0,
    },
    Family.GEMMA2: {
        "head_dim": 12,
        "query_pre_attn_scalar": 10,
        "sliding_window": 20,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 20.0,
        "tie_word_embeddings": True,
    },
    Family.GEMMA3: _GEMMA3,
    Family.GEMMA3_WITH_VISION: _GEMMA3,
    Family.GEMMA4: {
        **_GEMMA4,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 20,
    },
    Family.GEMMA4_WITH_TOWERS: {
        **_GEMMA4,
        "attention_k_eq_v": False,
        "hidden_size_per_layer_input": 10,
        "vocab_size_per_layer_input": 199,
        "num_hidden_layers": 5,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "layer_types": [
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "sliding_attention",
            "full_attention",
        ],
    },
    Family.GPT_OSS: {
        "head_dim": 12,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 20,
        # The only one that every release of transformers computes with; old ones do not write it.
        "swiglu_limit": 7.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    Family.GLM4_MOE: {
        "head_dim": 12,
        "attention_bias": True,
        "use_qk_norm": True,
        "first_k_dense_replace": 1,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "routed_scaling_factor": 1.5,
        "num_mtp_layers": 0,
    },
    Family.MINIMAX_M2: {
        "head_dim": 12,
        "rotary_dim": 6,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
    },
    Family.QWEN2_MOE: {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
    },
    Family.SEED_OSS: {"head_dim": 12, "attention_out_bias": False},
    Family.MIMO_V2_FLASH: {
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window": 20,
        "n_routed_experts": 6,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.334,
            },
        },
    },
    Family.OLMO3: {
        "sliding_window": 20,
        "rope_theta": 1000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
        },
    },
}
