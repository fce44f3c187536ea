"""Gemma 4 as published config.json files say it."""

import json
from pathlib import Path
from typing import Any

from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.spec.kv_groups import derive_kv_groups
from raydix.runtime.model.spec.rope_spec import DefaultRope, ProportionalRope
from raydix.runtime.model.spec.spec import AttentionSpec, DenseMlpSpec, LayerSpec, ModelSpec

TEXT = {
    "model_type": "gemma4_text",
    "attention_bias": False,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "max_position_embeddings": 131072,
}
E2B = {
    **TEXT,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
}
LARGE = {
    **TEXT,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_hidden_layers": 60,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 10,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    # It concerns images alone.
    "use_bidirectional_attention": "vision",
}


def read(folder: Path, text: dict[str, Any]) -> ModelSpec:
    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": text,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return read_checkpoint_config(folder).spec


def attention_of(layer: LayerSpec) -> AttentionSpec:
    assert isinstance(layer.attention, AttentionSpec)
    return layer.attention


def test_the_last_layers_of_e2b_read_keys_and_values_of_the_last_own_layer_of_their_type(
    tmp_path: Path,
) -> None:
    spec = read(tmp_path, E2B)

    sources = [attention_of(each).source_layer for each in spec.layers]
    assert sources == [None] * 15 + [13, 13, 13, 13, 14] * 4
    widths = [
        each.mlp.intermediate_size for each in spec.layers if isinstance(each.mlp, DenseMlpSpec)
    ]
    assert widths == [6144] * 15 + [12288] * 20
    groups = derive_kv_groups(spec.layers)
    assert [(len(group.layers), group.head_dim) for group in groups] == [(12, 256), (3, 512)]
    assert spec.layer_inputs is not None
    assert spec.layer_inputs.size == 256


def test_layers_of_the_large_model_differ_by_type(tmp_path: Path) -> None:
    spec = read(tmp_path, LARGE)

    window, full = attention_of(spec.layers[4]), attention_of(spec.layers[5])
    assert (window.num_kv_heads, window.head_dim, window.window) == (16, 256, 1024)
    assert (full.num_kv_heads, full.head_dim, full.window) == (4, 512, None)
    assert window.rope == DefaultRope(theta=1e4)
    assert full.rope == ProportionalRope(theta=1e6, factor=1.0, rotary_fraction=0.25)
    assert window.values is not None
    assert full.values is not None
    assert (window.values.are_keys, full.values.are_keys) == (False, True)
    assert spec.layer_inputs is None
