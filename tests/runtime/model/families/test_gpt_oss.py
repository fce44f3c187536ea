"""gpt-oss as it is published: experts packed as MXFP4, restored as they are read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from raydix.errors import CheckpointError
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, check_weights, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 32}
BLOCKS = "model.layers.1.mlp.experts.gate_up_proj_blocks"
SCALES = "model.layers.1.mlp.experts.gate_up_proj_scales"


def random_pair(num_experts: int, num_outputs: int, num_inputs: int) -> tuple[Tensor, Tensor]:
    """Blocks and scales of random numbers that bfloat16 can hold."""
    shape = (num_experts, num_outputs, num_inputs // 32)
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
    return blocks, torch.randint(90, 140, shape, dtype=torch.uint8)


def make_pair(folder: Path) -> tuple[Path, Path]:
    """The same model twice: packed, and as transformers unpacks it."""
    plain = make_checkpoint(folder / "plain", Family.GPT_OSS, seed=1, **SIZES)
    tensors = load_file(plain / "model.safetensors")
    packed = {}
    for name in list(tensors):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            num_experts, num_inputs, num_outputs = tensors[name].shape
            blocks, scales = random_pair(num_experts, num_outputs, num_inputs)
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            unpacked = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            tensors[name] = unpacked.contiguous()
        else:
            packed[name] = tensors[name]
    save_file(tensors, plain / "model.safetensors")

    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "packed").mkdir()
    (folder / "packed" / "config.json").write_text(json.dumps(config))
    save_file(packed, folder / "packed" / "model.safetensors")
    return folder / "packed", plain


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(folder, device=torch.device("cpu"), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_experts_are_those_that_transformers_unpacks(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    packed, plain = make_pair(tmp_path)

    weights, expected = (load(folder, dtype).decoder.weights() for folder in (packed, plain))

    assert weights.keys() == expected.keys()
    for name, part in weights.items():
        assert torch.equal(part.target, expected[name].target), name


def test_packed_weights_pass_by_their_headers_alone(tmp_path: Path) -> None:
    packed, _ = make_pair(tmp_path)
    require_checkpoint(ModelSection(path=str(packed)))
    check_weights(packed, read_checkpoint_config(packed))


def test_packed_and_plain_weights_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    packed, plain = (load(folder) for folder in make_pair(tmp_path))

    assert packed.spec.digest() == plain.spec.digest()
    assert packed.weight_fingerprint != plain.weight_fingerprint


BAD_PAIRS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "no scales": ({SCALES: None}, rf"{BLOCKS} without {SCALES}; expected both"),
    "no blocks": ({BLOCKS: None}, rf"{SCALES} without {BLOCKS}; expected both"),
    "scales of another shape": (
        {SCALES: torch.ones(5, 64, 3, dtype=torch.uint8)},
        r"has shape \[5, 64, 3\]; expected \[5, 64, 2\]",
    ),
    "scales of another dtype": ({SCALES: torch.ones(5, 64, 2)}, "is F32; expected one of U8"),
}


@pytest.mark.parametrize("name", BAD_PAIRS)
def test_pair_that_does_not_fit_is_named(name: str, tmp_path: Path) -> None:
    packed, _ = make_pair(tmp_path)
    changes, message = BAD_PAIRS[name]
    tensors = load_file(packed / "model.safetensors")
    changed = {
        name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None
    }
    save_file(changed, packed / "model.safetensors")

    with pytest.raises(CheckpointError, match=message):
        load(packed)
