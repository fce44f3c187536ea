"""A format of weights is a line of a table, whatever the family: one that only this test knows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint import quantization_config
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, check_weights, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.layout import Part, Shape
from raydix.runtime.model.formats.table import WEIGHT_FORMATS
from tests.checkpoints import make_checkpoint

FAMILIES = (Family.LLAMA, Family.QWEN3_MOE, Family.DEEPSEEK_V3, Family.GEMMA3, Family.GPT_OSS)


def swap_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers of two bytes with the other byte first, as int16."""
    return tensor.view(torch.uint8).unflatten(-1, (-1, 2)).flip(-1).flatten(-2).view(torch.int16)


@dataclass(frozen=True)
class SwappedLayout:
    """A weight as int16: float16 with the high byte first."""

    parts: Mapping[str, Part] = field(default_factory=lambda: {".weight": Part(("I16",))})

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        return {}

    def restore(self, parts: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        yield ".weight", swap_bytes(parts[".weight"]).view(torch.float16)


@dataclass(frozen=True)
class SwappedModules:
    """`ModuleLayouts`: any module may be stored so."""

    description: str = "the high byte first"
    named: frozenset[str] = frozenset()
    unused_parts: frozenset[str] = frozenset()

    def layout(self, module: str) -> SwappedLayout:
        return SwappedLayout()


SWAPPED = WeightFormat(
    quant_method="byte_swapped",
    summary="float16 with the high byte first",
    read=lambda config: SwappedModules(),
)


@pytest.fixture
def swapped_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization_config, "WEIGHT_FORMATS", (*WEIGHT_FORMATS, SWAPPED))


def make_pair(folder: Path, family: Family) -> tuple[Path, Path]:
    """The same float16 numbers twice: with their bytes swapped, and as they are."""
    plain = make_checkpoint(folder / "plain", family, seed=1)
    tensors = {name: each.half() for name, each in load_file(plain / "model.safetensors").items()}
    save_file(tensors, plain / "model.safetensors")

    swapped = folder / "swapped"
    swapped.mkdir()
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "byte_swapped"}
    (swapped / "config.json").write_text(json.dumps(config))
    stored = {
        name: swap_bytes(each) if name.endswith(".weight") else each
        for name, each in tensors.items()
    }
    save_file(stored, swapped / "model.safetensors")
    return swapped, plain


def load(folder: Path) -> LoadedModel:
    return load_model(folder, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("swapped_is_known")
def test_every_family_loads_from_a_format_that_a_line_of_the_table_adds(
    family: Family, tmp_path: Path
) -> None:
    swapped, plain = make_pair(tmp_path, family)
    require_checkpoint(ModelSection(path=str(swapped)))
    check_weights(swapped, read_checkpoint_config(swapped))

    weights, expected = (load(folder).decoder.weights() for folder in (swapped, plain))

    assert weights.keys() == expected.keys()
    for name, part in weights.items():
        assert torch.equal(part.target, expected[name].target), name


@pytest.mark.usefixtures("swapped_is_known")
def test_equal_bytes_in_another_format_are_other_weights(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, Family.LLAMA, seed=1)
    plain = load(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "byte_swapped"}
    (folder / "config.json").write_text(json.dumps(config))

    assert load(folder).weight_fingerprint != plain.weight_fingerprint


def test_a_format_that_is_not_in_the_table_is_refused(tmp_path: Path) -> None:
    swapped, _ = make_pair(tmp_path, Family.LLAMA)

    with pytest.raises(CheckpointError, match=r"quantised \(byte_swapped\); supported for llama"):
        require_checkpoint(ModelSection(path=str(swapped)))


@pytest.mark.usefixtures("swapped_is_known")
def test_weights_that_the_format_does_not_store_so_are_told_at_once(tmp_path: Path) -> None:
    swapped, _ = make_pair(tmp_path, Family.LLAMA)
    tensors = load_file(swapped / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, swapped / "model.safetensors")

    message = r"is I8; expected one of I16, as .*config\.json tells of byte_swapped"
    with pytest.raises(CheckpointError, match=message):
        require_checkpoint(ModelSection(path=str(swapped)))
