"""How checkpoints of Qwen3-Next and Qwen3.5 store what the decoder has apart."""

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from raydix.errors import CheckpointError, ConfigError
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.weights.rank_share import RankShare
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.decoder.gated_delta import GatedDelta
from raydix.runtime.model.families.fused_rows import FusedRows, take_apart
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.spec.spec import GatedDeltaSpec
from tests.checkpoints import make_checkpoint
from tests.plain_weights import plain_weights

CPU = torch.device("cpu")


def parameters(folder: Path) -> dict[str, Tensor]:
    model = load_model(folder, device=CPU, dtype=torch.float32)
    return dict(model.decoder.named_parameters())


def stack_experts(folder: Path) -> None:
    """Store the experts as published checkpoints in bfloat16 do."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    banks: dict[str, dict[int, dict[str, Tensor]]] = {}
    for name in list(tensors):
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if found is not None:
            experts = banks.setdefault(found[1], {})
            experts.setdefault(int(found[2]), {})[found[3]] = tensors.pop(name)
    assert banks
    for bank, experts in banks.items():
        rows = [torch.cat((experts[i]["gate"], experts[i]["up"])) for i in range(len(experts))]
        tensors[f"{bank}.gate_up_proj"] = torch.stack(rows)
        tensors[f"{bank}.down_proj"] = torch.stack([experts[i]["down"] for i in range(len(rows))])
    save_file(tensors, path, metadata={"format": "pt"})


def test_experts_are_the_same_stored_as_one_tensor(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, Family.QWEN3_5_MOE, seed=3)
    apart = parameters(folder)

    stack_experts(folder)

    stacked = parameters(folder)
    assert stacked.keys() == apart.keys()
    assert all(torch.equal(stacked[name], apart[name]) for name in apart)


def test_layers_that_guess_ahead_and_towers_are_left_aside(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, Family.QWEN3_5, seed=3)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    assert any(name.startswith("model.visual.") for name in tensors)
    guesses = ("mtp.fc.weight", "mtp.layers.0.input_layernorm.weight")
    tensors |= {name: torch.ones(4) for name in guesses}
    save_file(tensors, path, metadata={"format": "pt"})

    assert parameters(folder)


def test_rows_are_taken_apart_by_turns() -> None:
    stored = torch.arange(12)[:, None]
    fused = {"all": FusedRows(("a", "b", "c"), num_turns=2)}

    parts = dict(take_apart(iter([("all", stored)]), fused, {"a": 2, "b": 6, "c": 4}))

    assert {name: part.flatten().tolist() for name, part in parts.items()} == {
        "a": [0, 6],
        "b": [1, 2, 3, 7, 8, 9],
        "c": [4, 5, 10, 11],
    }


def test_a_fused_tensor_of_other_rows_is_refused() -> None:
    tensors = iter([("all", torch.zeros(7, 1))])

    with pytest.raises(CheckpointError, match="all has 7 rows; the config asks for 8"):
        list(take_apart(tensors, {"all": FusedRows(("a", "b"))}, {"a": 4, "b": 4}))


@pytest.mark.parametrize("family", [Family.QWEN3_5_TEXT, Family.QWEN3_NEXT])
def test_a_bias_of_queries_that_the_config_does_not_tell_of_is_left_aside(
    family: Family, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path, family, seed=3)
    expected = parameters(folder)
    tensors = load_file(folder / "model.safetensors")
    biases = {
        name.replace(".weight", ".bias"): torch.zeros(len(each))
        for name, each in tensors.items()
        if name.endswith("q_proj.weight")
    }
    assert biases
    save_file(tensors | biases, folder / "model.safetensors", metadata={"format": "pt"})

    with caplog.at_level(logging.WARNING):
        found = parameters(folder)

    assert f"they are left aside: {min(biases)}" in caplog.text
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("family", [Family.QWEN3_5_TEXT, Family.QWEN3_5_MOE, Family.QWEN3_NEXT])
def test_a_gate_of_states_that_is_not_silu_is_refused_by_name(
    family: Family, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path, family, seed=3)
    expected = read_checkpoint_config(folder)
    for same in ("silu", "swish", None):
        change_text_config(folder, output_gate_type=same)
        assert read_checkpoint_config(folder) == expected

    change_text_config(folder, output_gate_type="sigmoid")
    with pytest.raises(CheckpointError, match="output_gate_type is 'sigmoid'; only 'silu'"):
        read_checkpoint_config(folder)


def change_text_config(folder: Path, **fields: object) -> None:
    """Set fields of the section of config.json that describes the language model."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.get("text_config", config).update(fields)
    path.write_text(json.dumps(config))


def test_key_heads_that_ranks_cannot_divide_are_refused(tmp_path: Path) -> None:
    spec = read_checkpoint_config(make_checkpoint(tmp_path, Family.QWEN3_5_TEXT, seed=3)).spec
    layer = spec.layers[0].attention
    assert isinstance(layer, GatedDeltaSpec)

    with pytest.raises(ConfigError, match=r"parallel\.tp is 3; 4 key heads"):
        GatedDelta(
            layer,
            48,
            0,
            ReferenceOps(),
            share=RankShare(1, 3),
            weights=plain_weights(CPU, torch.float32),
        )
