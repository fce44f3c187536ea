"""MiMo-V2-Flash as its published config.json says it, with fewer layers."""

import json
from pathlib import Path

from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.spec.rope_spec import DefaultRope
from raydix.runtime.model.spec.spec import AttentionSpec, DenseMlpSpec, ValueSpec

PUBLISHED = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 7,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "vocab_size": 152576,
    "max_position_embeddings": 262144,
    "layernorm_epsilon": 1e-5,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "attention_bias": False,
    "attention_value_scale": 0.707,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "swa_rope_theta": 10000,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1],
    "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1],
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": None,
    "tie_word_embeddings": False,
}


def test_what_is_published_is_read_as_transformers_computes_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))

    layers = read_checkpoint_config(tmp_path).spec.layers

    attentions = [each.attention for each in layers if isinstance(each.attention, AttentionSpec)]
    assert [each.window for each in attentions] == [None, 129, 129, 129, 129, None, 129]
    assert [each.num_kv_heads for each in attentions] == [4, 8, 8, 8, 8, 4, 8]
    assert [each.has_sinks for each in attentions] == [each.window == 129 for each in attentions]
    assert {each.rotary_dim for each in attentions} == {64}
    assert {each.values for each in attentions} == {ValueSpec(head_dim=128, scale=0.707)}
    full, window = attentions[:2]
    assert (full.rope, window.rope) == (DefaultRope(theta=5e6), DefaultRope(theta=1e4))
    assert [isinstance(each.mlp, DenseMlpSpec) for each in layers] == [True] + [False] * 6
