import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, check_weights, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.kv_scale_names import KEYS, VALUES, kv_scale_name
from raydix.runtime.model.checkpoint.kv_scales import load_kv_scales
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

CPU = torch.device("cpu")
NUM_HEADS = 2


class RankOfTwo:
    """`Collectives` of a rank that is never stepped."""

    rank, size, is_capturable = 1, 2, False

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def gather(self, part_RV: torch.Tensor) -> torch.Tensor:
        return part_RV

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two layers with two KV heads each."""
    folder = tmp_path_factory.mktemp("plain")
    return make_checkpoint(folder, Family.QWEN3, seed=3, num_hidden_layers=2, num_key_value_heads=2)


def scaled(plain: Path, to: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A copy with more tensors; `{}` of their names stands for `model.layers.`."""
    shutil.copytree(plain, to)
    weights = to / "model.safetensors"
    more = {name.format("model.layers."): tensor for name, tensor in tensors.items()}
    save_file({**load_file(weights), **more}, weights)
    return to


def load(folder: Path) -> LoadedModel:
    return load_kv_scales(load_model(folder, device=CPU, dtype=torch.float32), folder)


def scales_of(loaded: LoadedModel) -> list[list[list[float]]]:
    return [layer.attention.kv_scales_2H.tolist() for layer in loaded.decoder.layers]


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ("{}1.self_attn.k_scale", "{}1.self_attn.v_scale"),
        ("{}1.self_attn.k_proj.k_scale", "{}1.self_attn.v_proj.v_scale"),
        ("{}1.self_attn.qkv_proj.k_scale", "{}1.self_attn.qkv_proj.v_scale"),
        ("{}1.self_attn.k_proj.output_scale", "{}1.self_attn.v_proj.output_scale"),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scales_are_found_by_every_name_that_they_have(
    plain: Path, tmp_path: Path, keys: str, values: str, shape: tuple[int, ...]
) -> None:
    tensors = {keys: torch.full(shape, 0.5), values: torch.full(shape, 2.0).bfloat16()}
    folder = scaled(plain, tmp_path / "model", tensors)

    check_weights(folder, read_checkpoint_config(folder))

    ones = [[1.0, 1.0], [1.0, 1.0]]
    assert scales_of(load(folder)) == [ones, [[0.5, 0.5], [2.0, 2.0]]]


def test_one_scale_may_serve_both_and_each_head_may_have_its_own(
    plain: Path, tmp_path: Path
) -> None:
    tensors = {
        "{}0.self_attn.kv_scale": torch.tensor(0.25),
        "{}1.self_attn.k_scale": torch.tensor([3.0, 4.0]).view(NUM_HEADS, 1, 1),
    }
    folder = scaled(plain, tmp_path / "model", tensors)

    assert scales_of(load(folder)) == [[[0.25, 0.25], [0.25, 0.25]], [[3.0, 4.0], [1.0, 1.0]]]

    part = load_model(folder, device=CPU, dtype=torch.float32, collectives=RankOfTwo())
    assert scales_of(load_kv_scales(part, folder)) == [[[0.25], [0.25]], [[4.0], [1.0]]]


def test_other_scales_are_another_fingerprint_and_none_change_nothing(
    plain: Path, tmp_path: Path
) -> None:
    fingerprints = [load(plain).fingerprint]
    for value in (1.0, 2.0):
        name = {"{}0.self_attn.k_scale": torch.tensor(value)}
        fingerprints.append(load(scaled(plain, tmp_path / str(value), name)).fingerprint)

    without = load_model(tmp_path / "2.0", device=CPU, dtype=torch.float32)

    assert len(set(fingerprints)) == 3
    # Who does without FP8 finds the same pages with them and without.
    assert without.fingerprint == fingerprints[0]


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(0.0), "expected scales above 0"),
        (torch.tensor([1.0, -1.0]), "expected scales above 0"),
        (torch.tensor(torch.inf), "expected scales above 0"),
        (torch.ones(3), "expected floats, one or 2"),
        (torch.tensor(1), "expected floats, one or 2"),
    ],
)
def test_what_is_no_scale_is_refused_by_name(
    plain: Path, tmp_path: Path, scale: torch.Tensor, message: str
) -> None:
    folder = scaled(plain, tmp_path / "model", {"{}1.self_attn.v_scale": scale})

    with pytest.raises(CheckpointError, match=rf"layers.1.self_attn.v_scale .*{message}"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.language_model.layers.12.self_attn.k_scale", (12, (KEYS,))),
        ("model.layers.0.self_attn.kv_scale", (0, (KEYS, VALUES))),
        ("model.layers.0.self_attn.q_scale", None),
        ("model.layers.0.self_attn.o_proj.output_scale", None),
        ("model.layers.0.mlp.k_scale", None),
    ],
)
def test_names_say_whose_scales_they_are(
    name: str, expected: tuple[int, tuple[int, ...]] | None
) -> None:
    assert kv_scale_name(name) == expected
