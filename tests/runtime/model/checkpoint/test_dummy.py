from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.dummy import FIXED, make_dummy_model
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

CPU = torch.device("cpu")


def test_a_folder_with_a_config_alone_gives_the_same_model_each_time(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()

    first = make_dummy_model(tmp_path, device=CPU, dtype=torch.float32)
    second = make_dummy_model(tmp_path, device=CPU, dtype=torch.float32)

    assert first.weight_fingerprint == second.weight_fingerprint
    theirs = dict(second.decoder.named_parameters())
    assert all(
        torch.equal(parameter, theirs[name]) for name, parameter in first.decoder.named_parameters()
    )
    assert torch.all(first.decoder.norm.weight == 1)
    assert 0.01 < first.decoder.embedding.table.matrix_OC.std() < 0.03


def test_a_tensor_depends_on_its_name_and_on_no_other_tensor(tmp_path: Path) -> None:
    """A rank may draw in any order, and only what it keeps a part of."""
    two, three = (
        make_dummy_model(
            make_checkpoint(tmp_path / str(n), Family.QWEN3, seed=1, num_hidden_layers=n),
            device=CPU,
            dtype=torch.float32,
        ).decoder.weights()
        for n in (2, 3)
    )

    assert all(torch.equal(part.target, three[name].target) for name, part in two.items())
    gates = [three[f"layers.{layer}.mlp.gate.weight"].target for layer in range(3)]
    assert not torch.equal(gates[0], gates[1])
    assert not torch.equal(gates[0], three["layers.0.mlp.up.weight"].target)


def test_fixed_tensors_are_taken_and_all_others_drawn(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, Family.GPT_OSS, seed=1)
    drawn = make_dummy_model(folder, device=CPU, dtype=torch.float32)
    bias = torch.arange(5.0)
    save_file({"layers.0.mlp.router.bias": bias}, folder / FIXED)

    model = make_dummy_model(folder, device=CPU, dtype=torch.float32)

    ours, theirs = model.decoder.weights(), drawn.decoder.weights()
    assert torch.equal(ours.pop("layers.0.mlp.router.bias").target, bias)
    assert all(torch.equal(part.target, theirs[name].target) for name, part in ours.items())
    assert model.weight_fingerprint != drawn.weight_fingerprint


@pytest.mark.parametrize("name", ["layers.0.mlp.router.bias", "layers.0.mlp.router.tilt"])
def test_fixed_tensor_that_does_not_fit_the_model_is_refused(tmp_path: Path, name: str) -> None:
    folder = make_checkpoint(tmp_path, Family.GPT_OSS, seed=1)
    save_file({name: torch.arange(6.0)}, folder / FIXED)

    with pytest.raises(CheckpointError, match=name):
        make_dummy_model(folder, device=CPU, dtype=torch.float32)
