from pathlib import Path

import torch

from raydix.runtime.model.dummy import make_dummy_model
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
    assert 0.01 < first.decoder.embedding.std() < 0.03


def test_a_tensor_depends_on_its_name_and_on_no_other_tensor(tmp_path: Path) -> None:
    """So that a rank may draw in any order, and only what it keeps a part of."""
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
