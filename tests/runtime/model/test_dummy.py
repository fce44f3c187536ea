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
