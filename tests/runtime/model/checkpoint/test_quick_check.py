"""What a start tells of a checkpoint before it begins with Ray."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.errors import CheckpointError
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"


@pytest.fixture
def folder(small_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return shutil.copytree(small_checkpoint, tmp_path / "model")


def model_at(folder: Path, **fields: Any) -> ModelSection:
    return ModelSection(path=str(folder), **fields)


def set_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def remove_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def quantise(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors | {NORM: tensors[NORM].to(torch.int8)}, folder / WEIGHTS)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no_weights": (remove_weights, "holds no weights; expected model.safetensors"),
    "cut_short": (
        lambda folder: (
            (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1]) and None
        ),
        "its header describes",
    ),
    "quantised": (quantise, f"{NORM} in .* is I8; expected one of F32, BF16, F16"),
    "another_size": (
        lambda folder: set_config(folder, hidden_size=96),
        r"embed_tokens.weight in .* has shape \[199, 48\]; expected \[199, 96\]",
    ),
    "more_layers": (
        lambda folder: set_config(folder, num_hidden_layers=7),
        "have 3 whole layers; expected 7",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_weights_that_cannot_serve_are_told(name: str, folder: Path) -> None:
    damage, message = DAMAGES[name]
    damage(folder)

    with pytest.raises(CheckpointError, match=message):
        require_checkpoint(model_at(folder))


@pytest.mark.parametrize("family", Family)
def test_weights_of_each_family_pass(family: Family, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family, seed=0, max_shard_size="40KB")
    require_checkpoint(model_at(folder))


def test_random_weights_need_no_files(folder: Path) -> None:
    remove_weights(folder)
    require_checkpoint(model_at(folder, load_format="dummy"))


def test_what_is_not_served_is_told_without_importing_torch() -> None:
    code = (
        f"import sys; import {require_checkpoint.__module__}; "
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
