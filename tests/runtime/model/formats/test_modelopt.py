"""Model Optimizer: which module is quantised how, and where its files tell it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from raydix.errors import CheckpointError
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.formats.four_bit import Nvfp4Layout
from raydix.runtime.model.formats.modelopt import MODELOPT
from raydix.runtime.model.formats.scaled import PER_OUTPUT, PER_TENSOR, ScaledLayout
from tests.quantised_checkpoints import make_quantised

FP8 = ScaledLayout(dtype="F8_E4M3", block=PER_TENSOR)
NVFP4 = Nvfp4Layout(numbers=".weight", whole_scale=".weight_scale_2", is_divisor=False)
MIXED = {
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.0.mlp.shared_expert": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "lm_head": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    },
}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("model.layers.0.self_attn.q_proj", FP8),
        ("model.layers.0.mlp.experts.11.up_proj", NVFP4),
        ("model.layers.0.mlp.shared_expert.up_proj", NVFP4),
        ("lm_head", ScaledLayout(dtype="F8_E4M3", block=PER_OUTPUT)),
        ("model.layers.0.mlp.experts_gate", None),
        ("model.layers.0.self_attn.q_proj_more", None),
    ],
)
def test_mixed_precision_names_modules_or_all_experts(module: str, expected: object) -> None:
    assert MODELOPT.read(MIXED).layout(module) == expected


def test_excluded_modules_are_named_as_shells_name_files() -> None:
    excluded = ["lm_head", "model.layers.0.self_attn*"]
    layouts = MODELOPT.read({"quantization": {"quant_algo": "FP8", "exclude_modules": excluded}})

    assert layouts.layout("lm_head") is None
    assert layouts.layout("model.layers.0.self_attn.q_proj") is None
    assert layouts.layout("model.layers.1.self_attn.q_proj") == FP8


@pytest.mark.parametrize(
    "told",
    [
        {"quant_algo": "W4A8_AWQ"},
        {"quant_algo": None},
        {"quant_algo": "NVFP4", "group_size": 32},
        {"quant_algo": "MIXED_PRECISION"},
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "INT4"}}},
    ],
)
def test_other_algorithms_are_refused_by_name(told: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"by quant_algo .*supported are FP8, .*and MIX"):
        MODELOPT.read(told)


def test_a_file_of_its_own_may_tell_the_quantisation(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.LLAMA, "modelopt nvfp4")
    config = json.loads((folder / "config.json").read_text())
    told = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": told["quantization"]})
    )
    require_checkpoint(ModelSection(path=str(folder)))

    weights, expected = (
        load_model(each, device=torch.device("cpu"), dtype=torch.float32).decoder.weights()
        for each in (folder, plain)
    )

    assert all(torch.equal(part.target, expected[name].target) for name, part in weights.items())


@pytest.mark.parametrize(
    ("key", "scheme"),
    [("quantization_config", "modelopt fp8"), ("compression_config", "int4 packed")],
)
def test_an_object_that_leaves_out_its_method_is_known_by_what_it_has(
    key: str, scheme: str, tmp_path: Path
) -> None:
    folder, _ = make_quantised(tmp_path, Family.LLAMA, scheme)
    expected = read_checkpoint_config(folder).quantisation
    config = json.loads((folder / "config.json").read_text())
    told = config.pop("quantization_config")
    del told["quant_method"]
    (folder / "config.json").write_text(json.dumps({**config, key: told}))

    require_checkpoint(ModelSection(path=str(folder)))

    assert read_checkpoint_config(folder).quantisation == expected


def test_an_object_that_tells_no_method_at_all_is_refused(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.LLAMA, "modelopt fp8")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"bits": 4}}))

    with pytest.raises(CheckpointError, match="has no quant_method; expected"):
        require_checkpoint(ModelSection(path=str(folder)))
