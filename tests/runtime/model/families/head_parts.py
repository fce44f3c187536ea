"""What heads of published config.json files are made of."""

from typing import Any

Head = dict[str, Any]


def head(model_type: str, architecture: str, **fields: Any) -> Head:
    """A config of these fields."""
    return {"model_type": model_type, "architectures": [architecture], **fields}


def sizes(layers: int, hidden: int, heads: int, kv_heads: int, inner: int) -> Head:
    """How large its layers are."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
    }


def vocabulary(size: int, context: int) -> Head:
    """How many tokens it knows, and how many it reads."""
    return {"vocab_size": size, "max_position_embeddings": context}


BLOCK_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
MINIMAX_FP8 = {
    **BLOCK_FP8,
    "fmt": "float8_e4m3fn",
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
INT4_OF_EXPERTS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.gate_proj.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": 32,
                "symmetric": True,
            },
        }
    },
}
FLOAT8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        }
    },
}
AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": None,
}
MATRIX_FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "static",
    "weight_block_size": None,
    "modules_to_not_convert": ["vision_tower", "multi_modal_projector", "lm_head"],
}
STATES = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10_000_000,
}
MANY_EXPERTS = {
    "n_group": 8,
    "topk_group": 4,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
LATENTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
YARN = {"type": "yarn", "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
DEEPSEEK = {
    **sizes(61, 7168, 128, 128, 18432),
    **vocabulary(129_280, 163_840),
    **LATENTS,
    **MANY_EXPERTS,
    "num_nextn_predict_layers": 1,
    "rope_theta": 10_000,
    "rope_scaling": {**YARN, "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": BLOCK_FP8,
}
KIMI = {
    **sizes(61, 7168, 64, 64, 18432),
    **vocabulary(163_840, 131_072),
    **LATENTS,
    **MANY_EXPERTS,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
    "rope_theta": 50_000.0,
    "rope_scaling": {
        **YARN,
        "beta_fast": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
    },
    "rms_norm_eps": 1e-6,
}
QWEN3 = {
    **sizes(64, 5120, 64, 8, 25_600),
    **vocabulary(151_936, 40_960),
    "head_dim": 128,
    "rope_theta": 1_000_000,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 64,
}
GEMMA4 = {
    **sizes(60, 5376, 32, 16, 21_504),
    **vocabulary(262_144, 262_144),
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
MINISTRAL = {
    **sizes(34, 4096, 32, 8, 14_336),
    **vocabulary(131_072, 262_144),
    "head_dim": 128,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    "sliding_window": None,
}
VISION: Head = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
