"""The models of the benchmarks: shapes of checkpoints without weights, and layouts of KV alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout

ModelConfig = Mapping[str, Any]
"""Fields of a checkpoint's config.json."""

_COMMON = {
    "hidden_act": "silu",
    "vocab_size": 32_000,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
_QWEN3_MOE = {
    **_COMMON,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_GPT_OSS = {
    **_COMMON,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "attention_bias": True,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "swiglu_limit": 7.0,
    "sliding_window": 128,
    "rope_theta": 150_000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}
FP8: ModelConfig = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "gate"],
}
"""Stored as Qwen3's and DeepSeek's are."""
AWQ: ModelConfig = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": ["gate"],
}
"""Stored as Qwen3's in four bits are."""
SHAPES: dict[str, ModelConfig] = {
    "dense_l16": {
        **_COMMON,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 16,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_key_value_heads": 8,
    },
    "qwen3_32b_l16": {
        **_COMMON,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151_936,
        "num_hidden_layers": 16,
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "moe_l12": {**_QWEN3_MOE, "num_hidden_layers": 12},
    "moe_l12_fp8": {**_QWEN3_MOE, "num_hidden_layers": 12, "quantization_config": FP8},
    "moe_l12_awq": {**_QWEN3_MOE, "num_hidden_layers": 12, "quantization_config": AWQ},
    "qwen3-30b-a3b": {**_QWEN3_MOE, "num_hidden_layers": 48, "vocab_size": 151_936},
    "latent_l61": {
        **_COMMON,
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 61,
        "intermediate_size": 2048,
        "num_nextn_predict_layers": 0,
    },
    "deepseek-v3-l8": {
        **_COMMON,
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": 129_280,
        "num_hidden_layers": 8,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_nextn_predict_layers": 0,
        "quantization_config": FP8,
    },
    "qwen3.6-35b-a3b-l12": {
        **{name: value for name, value in _COMMON.items() if name != "rope_theta"},
        "model_type": "qwen3_5_moe_text",
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "num_hidden_layers": 12,
        "vocab_size": 248_320,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
    },
    "gemma-2-9b": {
        **_COMMON,
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 42,
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rope_theta": 1e4,
        "tie_word_embeddings": True,
    },
    "gemma-3-12b": {
        **_COMMON,
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 48,
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
    },
    "gpt-oss-20b": _GPT_OSS,
    "biased_moe_l12": {
        **_GPT_OSS,
        "num_hidden_layers": 12,
        "hidden_size": 2048,
        "intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
    },
}
"""Qwen3 with 16 layers (64 KiB of KV per token), Qwen3-30B-A3B whole and cut to 12 layers,
Qwen3.6-35B-A3B cut to 12 (9 of which keep a state, 18.8 MiB together), and
attention of DeepSeek-V3 in all its layers (69 KiB per token), with small dense feed-forwards, and
DeepSeek-V3 as it is stored, cut to 3 dense layers and 5 of experts (56 GB of these). The
models with windows are whole but for their vocabulary, and Gemma 2 with a longer context than its
8192. `biased_moe_l12` has the experts of moe_l12 behind gpt-oss's router, whose bias makes some of
them popular."""


def token_bytes(model: ModelConfig, dtype_bytes: int) -> int:
    """What a token's keys and values take in all layers, of a model without windows and states."""
    if "kv_lora_rank" in model:
        elements = int(model["kv_lora_rank"]) + int(model["qk_rope_head_dim"])
    else:
        elements = 2 * int(model["num_key_value_heads"]) * int(model["head_dim"])
    return dtype_bytes * int(model["num_hidden_layers"]) * elements


def write_config(shape: str, folder: Path) -> Path:
    """Write a shape's config.json; its folder is a `model.path` for `load_format: dummy`."""
    return write_shape(SHAPES[shape], folder)


def write_shape(model: ModelConfig, folder: Path) -> Path:
    """The same of a shape that has no name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(model), indent=2))
    return folder


def make_layout(
    page_size: int,
    *,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    dtype_bytes: int = 4,
) -> KvLayout:
    """The layout of one KV group that keeps all tokens, for an engine without weights."""
    group = KvGroup(
        kind=GroupKind.FULL,
        layers=tuple(range(num_layers)),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )

    dtype = {2: "bfloat16", 4: "float32"}[dtype_bytes]
    return KvLayout(page_size=page_size, dtype=dtype, dtype_bytes=dtype_bytes, groups=(group,))


def small_model_layout(page_size: int) -> KvLayout:
    """16 KiB a token, as of a small model; a page of 64 tokens has 1 MiB."""
    return make_layout(page_size, num_layers=32, num_kv_heads=4, head_dim=32, dtype_bytes=2)
