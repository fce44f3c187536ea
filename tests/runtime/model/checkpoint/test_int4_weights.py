"""Weights in four bits: each format comes to one layout, exactly, and ranks cut it."""

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from raydix.errors import CheckpointError, ConfigError
from raydix.kernels.reference.int4_linear import restore
from raydix.kernels.weights.int4_weight import Int4Weight
from raydix.kernels.weights.weight import Weight
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, check_weights, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
)
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.checkpoint.model_sizes import measure_model
from raydix.runtime.model.families.table import Family
from tests.quantised_checkpoints import make_quantised
from tests.runtime.model.checkpoint.test_native_weights import CPU, HOPPER, Unmet

FORMATS = ["int4 packed", "int4 packed, zero points", "gptq", "gptq v2, zero points", "awq"]


def native(folder: Path) -> CheckpointConfig:
    return read_checkpoint_config(folder).served(QuantizationWay.NATIVE, "cpu", None)


def load(
    folder: Path, config: CheckpointConfig | None, rank: int = 0, size: int = 1
) -> LoadedModel:
    """Weights are restored if there is no `config`."""
    return load_model(
        folder,
        device=CPU,
        dtype=torch.float32,
        collectives=Unmet(rank, size),
        config=config,
    )


def matrices(loaded: LoadedModel, kind: type[nn.Module]) -> dict[str, nn.Module]:
    modules = loaded.decoder.named_modules()
    return {name: each for name, each in modules if isinstance(each, kind)}


def assert_stand_for_the_same(kept: LoadedModel, restored: LoadedModel) -> None:
    floats = matrices(restored, Weight)
    int4 = matrices(kept, Int4Weight)
    assert len(int4) == 8, "attention and feed-forwards of two layers"
    for name, each in int4.items():
        assert isinstance(each, Int4Weight)
        expected = floats[name]
        assert isinstance(expected, Weight)
        assert torch.equal(restore(each, torch.float32), expected.matrix_OC), name


@pytest.mark.parametrize("scheme", FORMATS)
@pytest.mark.parametrize("family", [Family.QWEN3, Family.QWEN3_MOE])
def test_every_rank_has_what_stands_for_the_restored_floats(
    family: Family, scheme: str, tmp_path: Path
) -> None:
    folder, plain = make_quantised(tmp_path, family, scheme)
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        kept = load(folder, native(folder), rank, size)
        assert_stand_for_the_same(kept, load(plain, None, rank, size))
        assert_stand_for_the_same(kept, load(folder, None, rank, size))
    check_weights(folder, native(folder))


def test_ranks_and_ways_are_told_apart_by_what_they_keep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "awq")
    with caplog.at_level(logging.INFO):
        alone = load(folder, native(folder))
    assert "(way: native), to float32; 14 matrices stay in four bits" in caplog.text
    divided = load(folder, native(folder), size=2)
    assert alone.decoder.int4_names == alone.decoder.scaled_names == divided.decoder.int4_names
    assert alone.fingerprint == divided.fingerprint != load(folder, None).fingerprint


def test_a_group_that_ranks_would_cut_is_restored_and_has_other_pages(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3_MOE, "gptq")
    alone, divided = (load(folder, native(folder), size=size) for size in (1, 4))
    assert {name.rpartition(".")[2] for name in alone.decoder.int4_names} >= {"gate", "up", "down"}
    assert set(divided.decoder.int4_names) < set(alone.decoder.int4_names)
    assert alone.fingerprint != divided.fingerprint


def test_rows_that_a_checkpoint_fuses_are_taken_apart_with_their_groups(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.PHI3, "gptq v2, zero points")
    assert_stand_for_the_same(load(folder, native(folder)), load(plain, None))


@pytest.mark.parametrize("scheme", ["gptq in any order", "gptq of 8 bits"])
def test_inputs_in_any_order_and_other_bits_are_refused(scheme: str, tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, scheme)
    with pytest.raises(ConfigError, match="no weight can stay as it is stored"):
        native(folder)


def test_an_order_that_the_config_does_not_tell_is_refused(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "gptq")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.g_idx"
    tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"groups are in no order.*quantization to restore"):
        load(folder, native(folder))
    load(folder, None)


def test_kernels_want_groups_of_a_multiple_of_32(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "awq")
    config = read_checkpoint_config(folder)
    with pytest.raises(ConfigError, match="4 bits in groups of a multiple of 32 inputs"):
        config.served(QuantizationWay.NATIVE, "cuda", HOPPER)
    assert config.served(QuantizationWay.AUTO, "cuda", HOPPER) == config


def test_floats_where_four_bits_were_told_are_refused(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.QWEN3, "awq")
    (plain / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"missing tensors|expected numbers of four bits"):
        load(plain, native(plain))


def test_four_bits_take_a_quarter_of_the_memory(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3_MOE, "awq")

    def expert_bytes(way: QuantizationWay) -> int:
        sizes = measure_model(folder, dtype="bfloat16", tp=1, page_size=16, way=way, device="cpu")
        return sizes.all_expert_bytes

    restored, kept = map(expert_bytes, (QuantizationWay.RESTORE, QuantizationWay.NATIVE))
    # A float32 scale and a byte for the zero point of each 16 numbers.
    assert kept == restored / 4 * (1 + 2 * 5 / 16)


def test_random_numbers_of_four_bits_are_as_large_as_random_floats(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "awq")
    drawn = make_dummy_model(folder, device=CPU, dtype=torch.float32, config=native(folder))
    down = drawn.decoder.layers[0].mlp.down
    assert isinstance(down, Int4Weight)
    assert 0.015 < float(restore(down, torch.float32).std()) < 0.025
