import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.errors import CheckpointError
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, check_weights, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.model.decoder.arithmetic_version import ARITHMETIC_VERSION
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

NORM = "model.layers.1.input_layernorm.weight"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(folder, device=torch.device("cpu"), dtype=dtype)


@pytest.fixture
def folder(small_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return shutil.copytree(small_checkpoint, tmp_path / "model")


def edit(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) remove tensors of a checkpoint with one shard."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def test_fingerprint_is_that_of_the_content_not_of_the_files(tmp_path: Path) -> None:
    one = load(make_checkpoint(tmp_path / "one", Family.MIXTRAL, seed=1))
    shards = load(
        make_checkpoint(tmp_path / "shards", Family.MIXTRAL, seed=1, max_shard_size="20KB")
    )
    other = load(make_checkpoint(tmp_path / "other", Family.MIXTRAL, seed=2))

    assert one.weight_fingerprint == shards.weight_fingerprint
    assert len(one.weight_fingerprint) == 32
    assert one.weight_fingerprint != other.weight_fingerprint
    assert one.spec.digest() == other.spec.digest()
    assert one.fingerprint == shards.fingerprint != other.fingerprint


def test_pages_of_another_arithmetic_are_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(folder)
    before = loaded.fingerprint

    monkeypatch.setattr(f"{load_model.__module__}.ARITHMETIC_VERSION", ARITHMETIC_VERSION + 1)

    assert loaded.fingerprint != before


def test_one_changed_element_changes_the_fingerprint(folder: Path) -> None:
    before = load(folder).weight_fingerprint
    weight = load_file(folder / "model.safetensors")[NORM]
    weight[3] += 1e-3

    edit(folder, {NORM: weight})

    assert load(folder).weight_fingerprint != before


def test_fingerprint_does_not_depend_on_the_dtype_that_is_served(folder: Path) -> None:
    in_bfloat16 = load(folder, torch.bfloat16)

    assert in_bfloat16.weight_fingerprint == load(folder).weight_fingerprint
    assert {p.dtype for p in in_bfloat16.decoder.parameters()} == {torch.bfloat16}


def test_bfloat16_checkpoint_loads_into_float32(folder: Path) -> None:
    weight = load_file(folder / "model.safetensors")["model.norm.weight"].bfloat16()

    edit(folder, {"model.norm.weight": weight})

    assert torch.equal(load(folder).decoder.norm.weight, weight.float())


BAD_TENSORS: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "missing": ({NORM: None}, rf"missing tensors: {NORM}"),
    "misshaped": ({NORM: torch.ones(5)}, rf"{NORM} has shape \[5\]; the config asks for \[48\]"),
    "quantised": (
        {NORM: torch.ones(48, dtype=torch.int8)},
        rf"{NORM} in .* is I8; expected one of F32",
    ),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensor_that_does_not_fit_is_named(name: str, folder: Path) -> None:
    changes, message = BAD_TENSORS[name]
    edit(folder, changes)

    with pytest.raises(CheckpointError, match=message):
        load(folder)
    with pytest.raises(CheckpointError, match=message):
        check_weights(folder, read_checkpoint_config(folder))


@pytest.mark.parametrize("family", Family)
def test_weights_that_fit_pass_by_their_headers_alone(family: Family, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family, seed=0)
    check_weights(folder, read_checkpoint_config(folder))


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    edit(folder, {f"model.layers.0.mlp.experts.{e}.up_proj.weight": None for e in range(6)})

    with pytest.raises(CheckpointError, match="and 1 more"):
        load(folder)


@pytest.mark.parametrize("kept_bytes", [0, 6, 5_000])
def test_truncated_shard_is_corrupt(kept_bytes: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])

    with pytest.raises(CheckpointError, match=r"model\.safetensors is cut short or corrupt"):
        load(folder)


def test_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    with pytest.raises(CheckpointError, match="holds no weights"):
        load(folder)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "sharded", Family.LLAMA, seed=3, max_shard_size="20KB")


def test_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-00002-*"))[0]
    shard.unlink()

    with pytest.raises(CheckpointError, match=shard.name):
        load(sharded)


def test_index_that_names_what_a_shard_lacks_is_refused(sharded: Path) -> None:
    index_path = sharded / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    index["weight_map"]["model.extra"] = index["weight_map"][NORM]
    index_path.write_text(json.dumps(index))

    with pytest.raises(CheckpointError, match=r"lacks model\.extra, which .* expected there"):
        load(sharded)


def test_tensors_that_the_index_does_not_name_are_read(sharded: Path) -> None:
    expected = load(sharded).weight_fingerprint
    index_path = sharded / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    holder = index["weight_map"].pop(NORM)
    index_path.write_text(json.dumps(index))
    # Another shard has what belongs to the first one by the index.
    other = next(each for each in index["weight_map"].values() if each != holder)
    tensors = load_file(sharded / other)
    here = next(name for name, file in index["weight_map"].items() if file == holder)
    save_file({**tensors, here: torch.ones(2)}, sharded / other)

    assert load(sharded).weight_fingerprint == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_more_tensors_than_the_model_has_are_left_aside_with_a_warning(
    dtype: torch.dtype, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = load(folder).decoder.state_dict()
    assert not caplog.records
    edit(folder, {"model.layers.0.self_attn.k_bonus": torch.ones(1).to(dtype)})

    require_checkpoint(ModelSection(path=str(folder)))
    check_weights(folder, read_checkpoint_config(folder))
    decoder = load(folder).decoder

    assert all(torch.equal(each, expected[name]) for name, each in decoder.state_dict().items())
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "model.layers.0.self_attn.k_bonus" in warning


def test_what_only_images_and_guesses_need_is_left_aside_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path / "guessing", Family.GLM4_MOE, seed=6)
    expected = load(folder)
    edit(
        folder,
        {
            "model.layers.3.eh_proj.weight": torch.ones(4, dtype=torch.int8),
            "mtp.fc.weight": torch.ones(4),
            "model.visual.patch_embed.weight": torch.ones(2, dtype=torch.bool),
        },
    )

    require_checkpoint(ModelSection(path=str(folder)))
    check_weights(folder, read_checkpoint_config(folder))
    with caplog.at_level("INFO"):
        loaded = load(folder)

    assert loaded.weight_fingerprint == expected.weight_fingerprint
    assert "left aside: 2 for guesses of tokens ahead, 1 for images" in caplog.text
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_language_model_may_be_one_part_of_several(prefix: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "alone", Family.QWEN3, seed=7)
    expected = load(folder).decoder.state_dict()
    tensors = load_file(folder / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    renamed = {prefix + name.removeprefix("model."): each for name, each in tensors.items()}
    save_file(renamed | {"lm_head.weight": head}, folder / "model.safetensors")

    require_checkpoint(ModelSection(path=str(folder)))
    found = load(folder).decoder.state_dict()

    assert all(torch.equal(each, expected[name]) for name, each in found.items())


def test_index_without_weight_map_is_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{}")

    with pytest.raises(CheckpointError, match="weight_map"):
        load(sharded)


@pytest.mark.parametrize("file", [None, 3, ["a"], "../other/model.safetensors"])
def test_index_that_names_no_file_of_the_folder_is_refused(file: object, sharded: Path) -> None:
    index_path = sharded / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    index["weight_map"][NORM] = file
    index_path.write_text(json.dumps(index))

    with pytest.raises(CheckpointError, match=rf"{NORM} is in .*expected the name of a file"):
        load(sharded)


def test_a_stored_head_that_differs_from_the_embedding_is_not_tied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path / "tied", Family.QWEN2, seed=4, tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit(folder, {"lm_head.weight": embedding.clone()})
    decoder = load(folder).decoder
    assert decoder.head is decoder.embedding.table
    assert not [each for each in caplog.records if each.levelname == "WARNING"]

    edit(folder, {"lm_head.weight": embedding + 1})
    check_weights(folder, read_checkpoint_config(folder))
    decoder = load(folder).decoder
    assert torch.equal(decoder.head.matrix_OC, embedding + 1)
    assert torch.equal(decoder.embedding.table.matrix_OC, embedding)
    assert "lm_head.weight differs" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("family", Family)
def test_a_model_on_a_gpu_has_the_parameters_of_one_on_the_cpu(
    family: Family, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, seed=5)
    expected = dict(load(folder).decoder.named_parameters())

    on_gpu = load_model(folder, device=torch.device("cuda"), dtype=torch.float32)

    for name, parameter in on_gpu.decoder.named_parameters():
        assert torch.equal(parameter.cpu(), expected[name]), name
    assert on_gpu.weight_fingerprint == load(folder).weight_fingerprint
