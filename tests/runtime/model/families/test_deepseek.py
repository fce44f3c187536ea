"""What the configs of released DeepSeek checkpoints mean, and which ones are refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.errors import CheckpointError
from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.spec.spec import (
    DenseMlpSpec,
    LatentAttentionSpec,
    ModelSpec,
    MoeMlpSpec,
    NormSpec,
)
from tests.checkpoints import make_checkpoint

COMMON: dict[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
}
YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
V2_LITE = {
    **COMMON,
    "architectures": ["DeepseekV2ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
V3 = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "eos_token_id": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
}


def read_spec(folder: Path, config: dict[str, Any], **changes: Any) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return read_checkpoint_config(folder).spec


def test_v2_lite_has_one_dense_layer_and_no_groups(tmp_path: Path) -> None:
    spec = read_spec(tmp_path, V2_LITE)

    first, *others = spec.layers
    assert (len(spec.layers), set(others)) == (27, {others[0]})
    assert first.mlp == DenseMlpSpec(intermediate_size=10944, bias=False)
    assert others[0].mlp == MoeMlpSpec(
        num_experts=64,
        experts_per_token=6,
        intermediate_size=1408,
        routing=GroupLimitedRouting(
            scoring=Scoring.SOFTMAX,
            num_groups=1,
            groups_per_token=1,
            scores_per_group=1,
            renormalise=False,
            scale=1.0,
            has_correction_bias=False,
        ),
        shared=DenseMlpSpec(intermediate_size=2816, bias=False),
    )


def test_v2_lite_stretches_positions_and_scores(tmp_path: Path) -> None:
    attention = read_spec(tmp_path, V2_LITE).layers[0].attention

    assert isinstance(attention, LatentAttentionSpec)
    assert (attention.q_lora_rank, attention.latent_dim) == (None, 576)
    assert attention.has_interleaved_pairs
    assert attention.scale == pytest.approx((0.0707 * math.log(40) + 1) ** 2 / math.sqrt(192))
    # The config's eps is of other norms.
    assert attention.norm == NormSpec(eps=1e-6)
    assert read_checkpoint_config(tmp_path).max_position_embeddings == 163840


def test_v3_chooses_by_sigmoid_and_bias_among_half_of_its_groups(tmp_path: Path) -> None:
    spec = read_spec(tmp_path, V3)

    assert [isinstance(layer.mlp, MoeMlpSpec) for layer in spec.layers] == [False] * 3 + [True] * 58
    sparse = spec.layers[3].mlp
    assert isinstance(sparse, MoeMlpSpec)
    assert sparse.routing == GroupLimitedRouting(
        scoring=Scoring.SIGMOID,
        num_groups=8,
        groups_per_token=4,
        scores_per_group=2,
        renormalise=True,
        scale=2.5,
        has_correction_bias=True,
    )


UNSUPPORTED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other scores": (V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    "other choice": (V3, {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    "no choice": (V2_LITE, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
    "scores of V3 in V2": (V2_LITE, {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'"),
    "renormalised V2": (V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob is true"),
    "sparse layers with gaps": (V3, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    "uneven groups": (V3, {"n_group": 7}, "n_group 7"),
    "no groups": (
        V2_LITE,
        {"topk_method": "group_limited_greedy", "n_group": None},
        "n_group None",
    ),
    "more groups than there are": (V3, {"topk_group": 9}, "topk_group is 9 of 8"),
    "groups of one": (V3, {"n_group": 256}, "256 groups of 1"),
    "groups too small": (V3, {"n_group": 128, "topk_group": 2}, "num_experts_per_tok is 8"),
    "odd rotated dims": (V3, {"qk_rope_head_dim": 63}, "even rotary dimension, but got .*63"),
    "no number of choices": (
        V2_LITE,
        {"num_experts_per_tok": None},
        "num_experts_per_tok is null",
    ),
    "temperature without YaRN": (
        V3,
        {"rope_scaling": {"type": "linear", "factor": 4.0, "mscale_all_dim": 1.0}},
        "mscale_all_dim is 1.0 of a rotary embedding of type 'linear'",
    ),
    "no latent": (V3, {"kv_lora_rank": 0}, "kv_lora_rank is 0"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_config_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config, changes, message = UNSUPPORTED[name]

    with pytest.raises(CheckpointError, match=message):
        read_spec(tmp_path, config, **changes)


def test_layers_that_guess_ahead_are_left_out_of_v3_alone(tmp_path: Path) -> None:
    for family in (Family.DEEPSEEK_V3, Family.DEEPSEEK_V2):
        folder = make_checkpoint(tmp_path / family.name, family, seed=1)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.3.eh_proj.weight"] = torch.zeros(4, 4)
        save_file(tensors, folder / "model.safetensors")

    load_model(tmp_path / "DEEPSEEK_V3", device=torch.device("cpu"), dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"unexpected: .*eh_proj"):
        load_model(tmp_path / "DEEPSEEK_V2", device=torch.device("cpu"), dtype=torch.float32)
