"""Every family against transformers: logits and greedy tokens, through hand-made plans."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan, TableChanges
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.decoder.decoder import make_decoder
from raydix.runtime.model.families.table import Family
from tests.checkpoints import (
    LOGITS_TOLERANCE,
    make_checkpoint,
    num_decided_tokens,
    reference_generate,
)
from tests.runtime.model.spec.test_spec import ATTENTION, DENSE, MODEL
from tests.runtime.model.steps.plan_driver import DrivenRequest, PlanDriver, Row, tokens_of

NUM_TOKENS = 64
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: list[tuple[str, Family, dict[str, Any]]] = [
    (
        "llama_3_heads_on_1",
        Family.LLAMA,
        {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 36},
    ),
    (
        "llama_tied_llama3_rope",
        Family.LLAMA,
        {"tie_word_embeddings": True, "rope_parameters": _LLAMA3_ROPE},
    ),
    (
        "llama_biased_yarn",
        Family.LLAMA,
        {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "rope_parameters": _YARN_ROPE},
    ),
    ("qwen2_tied", Family.QWEN2, {"tie_word_embeddings": True, "num_key_value_heads": 3}),
    (
        "qwen2_5_heads_in_shards",
        Family.QWEN2,
        {"num_attention_heads": 5, "num_key_value_heads": 5, "hidden_size": 50},
    ),
    ("qwen3_wide_heads_in_shards", Family.QWEN3, {"head_dim": 22, "num_key_value_heads": 1}),
    (
        "llama_linear_rope",
        Family.LLAMA,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}},
    ),
    (
        "qwen3_tied_yarn",
        Family.QWEN3,
        {"tie_word_embeddings": True, "rope_parameters": {**_YARN_ROPE, "truncate": False}},
    ),
    ("qwen3_moe_in_shards", Family.QWEN3_MOE, {"num_attention_heads": 7, "num_key_value_heads": 7}),
    (
        "qwen3_moe_partly_dense",
        Family.QWEN3_MOE,
        {
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": False,
        },
    ),
    (
        "qwen2_windows_of_later_layers",
        Family.QWEN2,
        {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1},
    ),
    (
        "qwen3_windows_of_chosen_layers",
        Family.QWEN3,
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    (
        "qwen3_moe_windows",
        Family.QWEN3_MOE,
        {"use_sliding_window": True, "sliding_window": 9, "mlp_only_layers": [1]},
    ),
    ("mistral_in_shards", Family.MISTRAL, {}),
    ("mistral_without_window", Family.MISTRAL, {"sliding_window": None, "head_dim": 10}),
    ("mistral_window_of_two_tokens", Family.MISTRAL, {"sliding_window": 2}),
    ("mixtral_windows", Family.MIXTRAL, {"sliding_window": 13}),
    ("gemma2_in_shards", Family.GEMMA2, {}),
    (
        "gemma2_without_caps",
        Family.GEMMA2,
        {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
            "sliding_window": 11,
            "attention_bias": True,
        },
    ),
    ("gemma3_in_shards", Family.GEMMA3, {}),
    (
        "gemma3_5_windows_to_1",
        Family.GEMMA3,
        {
            "num_hidden_layers": 7,
            "sliding_window_pattern": 6,
            "sliding_window": 13,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 15.0,
        },
    ),
    ("gemma3_with_vision", Family.GEMMA3_WITH_VISION, {}),
    ("gemma4_in_shards", Family.GEMMA4, {"tie_word_embeddings": False}),
    (
        "gemma4_values_of_their_own",
        Family.GEMMA4,
        {
            "num_hidden_layers": 7,
            "enable_moe_block": False,
            "attention_k_eq_v": False,
            "attention_bias": True,
            "sliding_window": 13,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 15.0,
        },
    ),
    ("gemma4_with_towers", Family.GEMMA4_WITH_TOWERS, {"tie_word_embeddings": False}),
    (
        "gemma4_told_of_tokens_in_each_layer",
        Family.GEMMA4,
        {
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 210,
            "tie_word_embeddings": False,
        },
    ),
    ("mimo_v2_flash_in_shards", Family.MIMO_V2_FLASH, {}),
    (
        "mimo_v2_flash_biased_and_unscaled",
        Family.MIMO_V2_FLASH,
        {
            "attention_bias": True,
            "attention_value_scale": None,
            "sliding_window_size": 15,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    (
        "gemma4_unified_keys_and_values_shared",
        Family.GEMMA4_UNIFIED_TEXT,
        {"tie_word_embeddings": False},
    ),
    ("gemma4_unified", Family.GEMMA4_UNIFIED, {}),
    ("gpt_oss_in_shards", Family.GPT_OSS, {}),
    (
        "gpt_oss_unbiased_attention",
        Family.GPT_OSS,
        {
            "attention_bias": False,
            "num_experts_per_tok": 3,
            "sliding_window": 17,
            "swiglu_limit": 1.5,
        },
    ),
    ("mixtral_in_shards", Family.MIXTRAL, {}),
    ("deepseek_v2_lite_in_shards", Family.DEEPSEEK_V2, {}),
    (
        "deepseek_v2_group_limited_biased",
        Family.DEEPSEEK_V2,
        {
            "q_lora_rank": 14,
            "topk_method": "group_limited_greedy",
            "attention_bias": True,
            "mlp_bias": True,
            "rms_norm_eps": 1e-3,
        },
    ),
    ("deepseek_v3_in_shards", Family.DEEPSEEK_V3, {}),
    (
        "deepseek_v3_biased_yarn_in_halves",
        Family.DEEPSEEK_V3,
        {
            "attention_bias": True,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
            "rope_parameters": {**_YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.5},
        },
    ),
    (
        "mixtral_3_of_7",
        Family.MIXTRAL,
        {"num_local_experts": 7, "num_experts_per_tok": 3, "tie_word_embeddings": True},
    ),
]


@pytest.mark.part
@pytest.mark.parametrize(("name", "family", "overrides"), CASES, ids=[case[0] for case in CASES])
def test_tokens_and_logits_are_those_of_transformers(
    name: str, family: Family, overrides: dict[str, Any], tmp_path: Path
) -> None:
    shard_size = "20KB" if name.endswith("in_shards") else "1GB"
    make_checkpoint(tmp_path, family, seed=len(name), max_shard_size=shard_size, **overrides)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "20KB")
    rng = np.random.default_rng(len(name))
    prompts = [rng.integers(0, 199, length).tolist() for length in (37, 70)]
    references = [reference_generate(tmp_path, prompt, NUM_TOKENS) for prompt in prompts]
    driver = PlanDriver(
        load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32), num_pages=2000
    )
    driver.record_logits()

    together = driver.generate(
        [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)], NUM_TOKENS
    )
    logits = torch.stack(driver.logits, dim=1)
    in_chunks = driver.generate(
        [driver.add(10 + slot, p) for slot, p in enumerate(prompts)], NUM_TOKENS, chunk=11
    )

    for i, reference in enumerate(references):
        num_checked = check_segment(together[i], logits[i], *reference)
        decided = num_decided_tokens(reference[1])
        assert in_chunks[i][:decided] == reference[0][:decided]
        while num_checked < NUM_TOKENS:
            print(f"{name}: prompt {i} continues teacher-forced after {num_checked} tokens")
            num_checked += check_teacher_forced(driver, prompts[i], reference, num_checked)


def test_layers_differ_in_heads_and_head_dims() -> None:
    wide = replace(DENSE, attention=replace(ATTENTION, num_kv_heads=1, head_dim=16))
    spec = replace(MODEL, layers=(DENSE, wide))

    decoder = make_decoder(spec, device=torch.device("meta"), dtype=torch.float32)

    shapes = {name: part.whole_shape for name, part in decoder.weights().items()}
    assert [shapes[f"layers.{i}.attention.k.weight"] for i in (0, 1)] == [(16, 32), (16, 32)]
    assert [shapes[f"layers.{i}.attention.q.weight"] for i in (0, 1)] == [(32, 32), (64, 32)]


WINDOWED: list[tuple[Family, dict[str, Any]]] = [
    (Family.MISTRAL, {"sliding_window": 21}),
    (Family.QWEN3, {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    (Family.GEMMA2, {"sliding_window": 21}),
    (Family.GEMMA3, {"sliding_window": 19}),
    (Family.GEMMA4, {"sliding_window": 19}),
    (Family.MIMO_V2_FLASH, {"sliding_window": 19}),
    (Family.GEMMA4_WITH_TOWERS, {"sliding_window": 19}),
    (Family.GPT_OSS, {"sliding_window": 19}),
]


@pytest.mark.parametrize(("family", "overrides"), WINDOWED, ids=[w[0].name for w in WINDOWED])
def test_pages_behind_the_window_matter_to_no_token(
    family: Family, overrides: dict[str, Any], tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, family, seed=4, **overrides)
    prompt = np.random.default_rng(4).integers(0, 199, 110).tolist()
    tokens, logits = reference_generate(tmp_path, prompt, NUM_TOKENS)
    model = load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
    driver = PlanDriver(model)
    request = driver.add(0, prompt)
    outputs = []

    while request.num_tokens < len(prompt) + NUM_TOKENS:
        leave_behind_windows(driver, model, request)
        count = min(13, request.num_tokens - request.position)
        output = driver.step([Row(request=request, num_tokens=count)])
        outputs += tokens_of(output)

    decided = num_decided_tokens(logits)
    assert decided > 0
    assert outputs[:decided] == tokens[:decided]


def leave_behind_windows(driver: PlanDriver, model: LoadedModel, request: DrivenRequest) -> None:
    """Take from the window groups the pages that the next query no longer sees, and poison them."""
    for group, kv_group in enumerate(model.decoder.kv_groups):
        if kv_group.window is None:
            continue
        num_gone = max(request.position - kv_group.window + 1, 0) // driver.page_size
        change = TableChanges(
            group=group,
            slots=int32_array([request.slot]),
            starts=int32_array([0]),
            counts=int32_array([num_gone]),
            page_ids=int32_array([0] * num_gone),
        )
        driver.runner.apply(StepPlan(step=0, tables=(change,)))
        pool, table = driver.pools[group], driver.page_ids(group, request.pages)
        pool[[0, *table[:num_gone]]] = torch.nan


def check_segment(
    tokens: list[int], logits: torch.Tensor, expected: list[int], expected_logits: torch.Tensor
) -> int:
    """Compare up to the first undecided position: its logits count, its token does not."""
    decided = num_decided_tokens(expected_logits)
    assert tokens[:decided] == expected[:decided]
    difference = (logits[: decided + 1] - expected_logits[: decided + 1]).abs().max()
    assert difference <= LOGITS_TOLERANCE * expected_logits.abs().max()
    return min(decided + 1, len(expected))


def check_teacher_forced(
    driver: PlanDriver, prompt: list[int], reference: tuple[list[int], torch.Tensor], start: int
) -> int:
    """Give the reference's first `start` tokens as prompt and compare what follows."""
    tokens, logits = reference
    driver.logits.clear()
    request = driver.add(39, prompt + tokens[:start])
    got = driver.generate([request], NUM_TOKENS - start)[0]
    driver.remove(request)
    return check_segment(got, torch.cat(driver.logits), tokens[start:], logits[start:])
