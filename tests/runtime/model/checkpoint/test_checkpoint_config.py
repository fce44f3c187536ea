import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.spec.rope_spec import DefaultRope, LinearRope, Llama3Rope, Rope, YarnRope
from raydix.runtime.model.spec.spec import DenseMlpSpec, MoeMlpSpec
from tests.checkpoints import make_checkpoint

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rope_theta": 5000.0,
    "eos_token_id": 7,
    "torch_dtype": "bfloat16",
}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "hidden_size_per_layer_input": 0,
}
MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "rope_theta": 5e6,
}
WITH_VISION = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
DEEPSEEK_V3 = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 8}


def write_config(folder: Path, **overrides: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**BASE, **overrides}))
    return folder


def read_ropes(folder: Path) -> set[Rope]:
    """The rotary embeddings of all layers."""
    return {layer.attention.rope for layer in read_checkpoint_config(folder).spec.layers}


@pytest.mark.parametrize("family", Family)
def test_what_was_read_is_the_same_in_another_process(family: Family, tmp_path: Path) -> None:
    read = read_checkpoint_config(make_checkpoint(tmp_path / "model", family, seed=1))

    copy = pickle.loads(pickle.dumps(read))

    assert copy == read
    assert copy.family is read.family
    assert copy.spec.digest() == read.spec.digest()


def test_old_style_config_is_understood(tmp_path: Path) -> None:
    config = read_checkpoint_config(write_config(tmp_path))

    assert config.family is Family.LLAMA
    assert config.eos_token_ids == (7,)
    assert config.max_position_embeddings == 2048
    assert not config.spec.tied_embeddings
    first, second = config.spec.layers
    assert first == second
    assert first.attention.rope == DefaultRope(theta=5000.0)
    assert (first.attention.head_dim, first.attention.num_kv_heads) == (8, 2)
    assert first.mlp == DenseMlpSpec(intermediate_size=40, bias=False)


def test_generation_config_decides_the_eos_ids(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))

    assert read_checkpoint_config(write_config(tmp_path)).eos_token_ids == (5, 6)


def test_llama3_rope_is_read(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", **LLAMA3}

    [rope] = read_ropes(write_config(tmp_path, rope_scaling=scaling))

    assert rope == Llama3Rope(
        theta=5000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=512,
    )


def test_yarn_extends_the_context(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}

    folder = write_config(tmp_path, rope_scaling=scaling)

    assert [type(rope) for rope in read_ropes(folder)] == [YarnRope]
    assert read_checkpoint_config(folder).max_position_embeddings == 8192


def read_windows(folder: Path) -> list[int | None]:
    """The window of each layer."""
    return [layer.attention.window for layer in read_checkpoint_config(folder).spec.layers]


WINDOWS: dict[str, tuple[dict[str, Any], list[int | None]]] = {
    "unused": ({**QWEN2, "sliding_window": 256, "use_sliding_window": False}, [None, None]),
    "as long as the context": ({**MIXTRAL, "sliding_window": 2048}, [None, None]),
    "that YaRN outgrows": (
        {
            **MIXTRAL,
            "sliding_window": 2048,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 2048,
            },
        },
        [2048, 2048],
    ),
    "of all layers": ({**MISTRAL, "sliding_window": 128}, [128, 128]),
    "of none": ({**MISTRAL, "sliding_window": None}, [None, None]),
    "of the later layers": (
        {**QWEN2, "use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1},
        [None, 128],
    ),
    "that Llama does not know": ({"sliding_window": 128}, [None, None]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_window_is_read_layer_by_layer(name: str, tmp_path: Path) -> None:
    overrides, windows = WINDOWS[name]

    assert read_windows(write_config(tmp_path, **overrides)) == windows


def test_each_layer_says_whether_it_has_experts(tmp_path: Path) -> None:
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    chosen = {"decoder_sparse_step": 2, "mlp_only_layers": [3], "num_hidden_layers": 6}

    spec = read_checkpoint_config(write_config(tmp_path, **QWEN3_MOE, **experts, **chosen)).spec

    sparse = [i for i, layer in enumerate(spec.layers) if isinstance(layer.mlp, MoeMlpSpec)]
    assert sparse == [1, 5]
    assert spec.layers[3].mlp == DenseMlpSpec(intermediate_size=40, bias=False)


def test_gemma_3_of_the_old_style_has_two_ropes(tmp_path: Path) -> None:
    text = {
        **{name: value for name, value in BASE.items() if name != "eos_token_id"},
        **GEMMA3,
        "num_hidden_layers": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 1024,
        "sliding_window_pattern": 3,
    }

    config = read_checkpoint_config(
        write_config(tmp_path, **WITH_VISION, text_config=text, eos_token_id=[1, 5])
    )

    layers = [layer.attention for layer in config.spec.layers]
    assert [layer.window for layer in layers] == [1024, 1024, None] * 2
    assert layers[0].rope == DefaultRope(theta=1e4)
    assert layers[2].rope == LinearRope(theta=1e6, factor=8.0)
    assert config.eos_token_ids == (1, 5)


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "rope type": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    "partial rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "window of nothing": ({**MIXTRAL, "sliding_window": 0}, "sliding_window is 0; expected"),
    "layers of another type": (
        {**QWEN2, "layer_types": ["full_attention", "chunked_attention"]},
        "layer_types is .*chunked_attention",
    ),
    "layers of another type, each type with a rotary embedding": (
        {**GEMMA3, "layer_types": ["full_attention", "chunked_attention"]},
        "layer_types is .*chunked_attention",
    ),
    "fewer types than layers": (
        {**GPT_OSS, "layer_types": ["sliding_attention"]},
        "not valid: .*layer_types.*Correct config.json",
    ),
    "layers with a window of no size": (
        {**GPT_OSS, "sliding_window": None},
        "sliding_window is None, but layer_types has 'sliding_attention'",
    ),
    "types of layers that Mistral does not have": (
        {**MISTRAL, "layer_types": ["sliding_attention", "full_attention"]},
        "layer_types is .*expected 'sliding_attention' for all",
    ),
    "latents of which an odd part is rotated": (
        {**DEEPSEEK_V3, "qk_rope_head_dim": 7},
        "not valid: .*even rotary dimension.*Correct config.json",
    ),
    "architecture": ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "gpt2"),
    "other head": (
        {"architectures": ["LlamaForSequenceClassification"]},
        "LlamaForSequenceClassification",
    ),
    "quantised": ({"quantization_config": {"quant_method": "aqlm", "bits": 2}}, "aqlm"),
    "quantised otherwise": (
        {**GPT_OSS, "quantization_config": {"quant_method": "aqlm"}},
        r"quantised \(aqlm\); supported for gpt_oss: .*mxfp4",
    ),
    "quantised as another family is": (
        {"quantization_config": {"quant_method": "mxfp4"}},
        r"quantised \(mxfp4\); supported for llama: ((?!mxfp4).)*one of these",
    ),
    "experts without a limit": ({**GPT_OSS, "swiglu_limit": 0.0}, "swiglu_limit is 0.0; expected"),
    "activation": ({"hidden_act": "gelu"}, "gelu"),
    "odd head dim": ({**QWEN2, "hidden_size": 28}, "head_dim is 7"),
    "uneven groups": ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads is 0; expected"),
    "no KV heads": ({"num_key_value_heads": 0}, "num_key_value_heads is 0; expected"),
    "no layers": ({"num_hidden_layers": -1}, "num_hidden_layers is -1; expected"),
    "too many layers": ({"num_hidden_layers": 10**12}, r"expected at most 10,000"),
    "e5m2": ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "is e4m3, called"),
    "no vocabulary": ({"vocab_size": 0}, "vocab_size is 0; expected"),
    "quantised by a word": ({"quantization_config": "fp8"}, "is 'fp8'; expected an object"),
    "EOS beyond the vocabulary": (
        {"eos_token_id": [7, 100]},
        r"eos_token_id is \[7, 100\]; expected ids from 0 to 99",
    ),
    "EOS below it": ({"eos_token_id": -1}, "eos_token_id is -1; expected"),
    "no theta": ({"rope_theta": 0.0}, "rope_theta of the rotary embedding is 0"),
    "YaRN of nothing": (
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 0,
            }
        },
        "original_max_position_embeddings of the rotary embedding is 0",
    ),
    "Llama 3 without a factor": (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": None}},
        "factor",
    ),
    "Llama 3 of equal factors": (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
        "low_freq_factor is 4 and high_freq_factor 4",
    ),
    "no sparse step": ({**QWEN3_MOE, "decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    "too few experts": (
        {**MIXTRAL, "num_experts_per_tok": 5},
        "num_experts_per_tok is 5; expected at most",
    ),
    "attention to later tokens": (
        {**GEMMA3, "use_bidirectional_attention": True, "sliding_window": 128},
        "use_bidirectional_attention is true",
    ),
    "capped scores of Gemma 3": (
        {**GEMMA3, "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping is 50.0; Gemma 3 has none",
    ),
    "attention of all to later tokens": (
        {**GEMMA4, "use_bidirectional_attention": "all"},
        "use_bidirectional_attention is 'all'",
    ),
    "more pairs than a head has": (
        {
            **GEMMA4,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1e6,
                    "partial_rotary_factor": 1.25,
                },
            },
        },
        "partial_rotary_factor is 1.25; expected at most 1",
    ),
    "no layer whose keys and values others can share": (
        {**GEMMA4, "num_kv_shared_layers": 2},
        "num_kv_shared_layers is 2 of 2 layers; expected layers of each type",
    ),
    "tokens of which layers are told nothing": (
        {**GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99},
        "vocab_size_per_layer_input is 99; expected at least vocab_size, 100",
    ),
    "experts of which there are none": (
        {**GEMMA4, "enable_moe_block": True, "top_k_experts": 2, "moe_intermediate_size": 8},
        "num_experts is null; expected a whole number",
    ),
    "heads of no size": ({**GEMMA4, "global_head_dim": 0}, "global_head_dim is 0; expected"),
    "values wider than keys": (
        {**MIMO, "head_dim": 24, "v_head_dim": 32},
        "v_head_dim is 32; expected at most head_dim, 24",
    ),
    "more KV heads of window layers than query heads": (
        {**MIMO, "num_key_value_heads": 4, "layer_types": ["full_attention", "sliding_attention"]},
        "num_attention_heads is 4; expected a multiple of twice num_key_value_heads, 8",
    ),
    "another pattern of windows than transformers computes": (
        {**MIMO, "num_key_value_heads": 2, "hybrid_layer_pattern": [1, 0]},
        r"hybrid_layer_pattern is \[1, 0\]; only \[0, 1\] is supported",
    ),
    "sinks where transformers has none": (
        {**MIMO, "num_key_value_heads": 2, "add_full_attention_sink_bias": True},
        "add_full_attention_sink_bias is True; only False",
    ),
    "another part of heads to rotate than transformers rotates": (
        {**MIMO, "partial_rotary_factor": 0.5},
        r"partial_rotary_factor is 0\.5; only 0\.334 is supported",
    ),
    "no scale": ({**GEMMA3, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; expected"),
    "language model of no size": (
        {**WITH_VISION, "text_config": {"hidden_size": 0}},
        "hidden_size is 0; expected",
    ),
    "vision without a language model": (
        {**WITH_VISION, "text_config": None},
        "config of the language model is None",
    ),
    "wrong type": ({"hidden_size": "wide"}, "hidden_size"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_config_is_refused_by_name(name: str, tmp_path: Path) -> None:
    overrides, message = UNSUPPORTED[name]

    with pytest.raises(CheckpointError, match=message) as refusal:
        read_checkpoint_config(write_config(tmp_path, **overrides))
    assert "\n" not in str(refusal.value)


def test_hub_name_is_refused() -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        read_checkpoint_config("meta-llama/Llama-3.1-8B")


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        read_checkpoint_config(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_config_that_is_no_json_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)

    with pytest.raises(CheckpointError, match="JSON"):
        read_checkpoint_config(tmp_path)


def test_bin_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"\.bin weights"):
        read_checkpoint_config(write_config(tmp_path))
