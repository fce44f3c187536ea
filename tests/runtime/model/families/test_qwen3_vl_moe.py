"""Experts of Qwen3-VL are read whichever way their stacks were saved."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.families.qwen3_moe import _outputs_first
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32)
    return dict(model.decoder.named_parameters())


@pytest.mark.parametrize("intermediate_size", [20, 16, 32], ids=["", "gate_up", "down"])
def test_stacks_as_published_are_those_that_transformers_saves(
    intermediate_size: int, tmp_path: Path
) -> None:
    """Where gate and up together, or down, are square, too."""
    sizes = {"hidden_size": 32, "moe_intermediate_size": intermediate_size}
    folder = make_checkpoint(tmp_path, Family.QWEN3_VL_MOE, seed=3, **sizes)
    expected = parameters(folder)
    [file] = folder.glob("*.safetensors")
    tensors = load_file(file)
    stacks = [name for name in tensors if ".experts." in name]
    assert {name.rpartition(".")[2] for name in stacks} == {"gate_up_proj", "down_proj"}

    # Published are [experts, inputs, outputs].
    turned = {name: tensors[name].transpose(1, 2).contiguous() for name in stacks}
    save_file({**tensors, **turned}, file)

    found = parameters(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], each) for name, each in expected.items())


@pytest.mark.parametrize("kinds", [("gate_up_proj", "down_proj"), ("down_proj", "gate_up_proj")])
def test_square_stacks_are_read_whichever_comes_first(kinds: tuple[str, str]) -> None:
    down_EIH, gate_up_EHX = torch.randn(2, 2, 4), torch.randn(2, 4, 4)
    published = {"down_proj": down_EIH, "gate_up_proj": gate_up_EHX}
    shapes = {"gate_up_proj": (4, 4), "down_proj": (4, 2)}

    stored = ((f"layers.0.mlp.experts.{kind}", published[kind]) for kind in kinds)
    found = {name.rpartition(".")[2]: each for name, each in _outputs_first(stored, shapes)}

    assert torch.equal(found["down_proj"], down_EIH.mT)
    assert torch.equal(found["gate_up_proj"], gate_up_EHX.mT)


def test_square_stacks_alone_are_refused_by_name() -> None:
    stored = iter([("layers.0.mlp.experts.gate_up_proj", torch.zeros(2, 4, 4))])
    shapes = {"gate_up_proj": (4, 4), "down_proj": (4, 2)}
    with pytest.raises(CheckpointError, match=r"experts\.gate_up_proj has the shape \[2, 4, 4\]"):
        list(_outputs_first(stored, shapes))
