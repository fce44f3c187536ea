"""Experts of Qwen3-VL are read whichever way their stacks were saved."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32)
    return dict(model.decoder.named_parameters())


def test_stacks_as_published_are_those_that_transformers_saves(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, Family.QWEN3_VL_MOE, seed=3)
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
