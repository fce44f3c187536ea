"""Which weights stay in float8: how they are stored, where the model runs, how ranks cut them."""

import logging
from pathlib import Path

import pytest
import torch

from raydix.errors import CheckpointError, ConfigError
from raydix.kernels.fp8.form import IN_BLOCKS, KERNEL_BLOCKS, PER_OUTPUT
from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.weights.kept_form import KeptForm
from raydix.kernels.weights.scaled_weight import ScaledWeight
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, check_weights, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
)
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.checkpoint.model_sizes import measure_model
from raydix.runtime.model.checkpoint.native_weights import kept_forms
from raydix.runtime.model.families.table import Family
from tests.quantised_checkpoints import make_quantised

CPU = torch.device("cpu")
HOPPER, AMPERE = (9, 0), (8, 0)


class Unmet:
    """`Collectives` of a rank that never meets the others."""

    is_capturable = False

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The part alone."""
        return part

    def gather(self, part_RV: torch.Tensor) -> torch.Tensor:
        """The part alone."""
        return part_RV

    def close(self) -> None:
        """Nothing is connected."""


def native(folder: Path) -> CheckpointConfig:
    return read_checkpoint_config(folder).served(QuantizationWay.NATIVE, "cpu", None)


def load(folder: Path, *, tp: int = 1) -> LoadedModel:
    return load_model(
        folder,
        device=CPU,
        dtype=torch.float32,
        collectives=Unmet(0, tp),
        config=native(folder),
    )


IN_GROUPS = Int4Groups(128)


@pytest.mark.parametrize(
    ("way", "device", "capability", "stays"),
    [
        (QuantizationWay.RESTORE, "cpu", None, ()),
        (QuantizationWay.AUTO, "cpu", None, ()),
        (QuantizationWay.NATIVE, "cpu", None, ((16, 16), IN_BLOCKS, Int4Groups(16), IN_GROUPS)),
        (QuantizationWay.RESTORE, "cuda", HOPPER, ()),
        (QuantizationWay.AUTO, "cuda", HOPPER, (IN_BLOCKS,)),
        (QuantizationWay.AUTO, "cuda", AMPERE, ()),
        (QuantizationWay.AUTO, "cuda", None, ()),
        (QuantizationWay.NATIVE, "cuda", HOPPER, (IN_BLOCKS, IN_GROUPS)),
        (QuantizationWay.NATIVE, "cuda", None, (IN_BLOCKS, IN_GROUPS)),
    ],
)
def test_weights_stay_where_it_is_asked_for_and_there_are_kernels(
    way: QuantizationWay,
    device: str,
    capability: tuple[int, int] | None,
    stays: tuple[KeptForm, ...],
) -> None:
    may_stay = kept_forms(way, device, capability)
    forms: list[KeptForm] = [(16, 16), IN_BLOCKS, Int4Groups(16), IN_GROUPS]
    assert tuple(each for each in forms if may_stay is not None and may_stay(each)) == stays


def test_what_another_gpu_would_keep_is_restored_on_one_without_kernels(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "float8 per output")
    config = read_checkpoint_config(folder)

    kept = config.served(QuantizationWay.AUTO, "cuda", HOPPER)

    assert kept.quantisation.way == "native"
    assert kept.served(QuantizationWay.AUTO, "cuda", AMPERE) == config
    assert config.served(QuantizationWay.AUTO, "cuda", None) == config


def test_a_gpu_without_kernels_is_refused_where_float8_is_to_stay() -> None:
    with pytest.raises(ConfigError, match=r"compute capability 8\.0; there are kernels for 9\.0"):
        kept_forms(QuantizationWay.NATIVE, "cuda", AMPERE)


@pytest.mark.parametrize("scheme", ["int8 packed", "mxfp4", "int8 per output"])
def test_what_is_neither_float8_nor_four_bits_is_refused_where_it_is_to_stay(
    scheme: str, tmp_path: Path
) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, scheme)
    with pytest.raises(ConfigError, match="no weight can stay as it is stored"):
        native(folder)


def test_kernels_know_blocks_of_128_and_scales_per_output(tmp_path: Path) -> None:
    for number, scheme in enumerate(("fp8 blocks of 16", "float8 per output", "fp8 per tensor")):
        folder, _ = make_quantised(tmp_path / str(number), Family.QWEN3, scheme)
        config = read_checkpoint_config(folder)
        if scheme == "fp8 blocks of 16":
            with pytest.raises(ConfigError, match="no weight can stay as it is stored"):
                config.served(QuantizationWay.NATIVE, "cuda", HOPPER)
            continue
        served = config.served(QuantizationWay.NATIVE, "cuda", HOPPER)
        assert {part.form for layer in served.spec.layers for part in layer.scaled} == {PER_OUTPUT}
    assert IN_BLOCKS in KERNEL_BLOCKS


@pytest.mark.parametrize("family", [Family.QWEN3, Family.QWEN3_MOE, Family.DEEPSEEK_V3])
def test_what_layers_multiply_by_stays_and_nothing_else(family: Family, tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, family, "fp8 blocks of 16")
    loaded = load(folder)

    kept = {name.rpartition(".")[2] for name in loaded.decoder.scaled_names}
    latent = {"q_down", "q_up", "latent"} if family is Family.DEEPSEEK_V3 else {"q", "k", "v"}
    assert kept == {*latent, "output", "gate", "up", "down"}
    check_weights(folder, native(folder))


def test_ranks_keep_the_same_as_one(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3_MOE, "fp8 blocks of 16")
    alone, divided = load(folder), load(folder, tp=2)
    assert alone.decoder.scaled_names == divided.decoder.scaled_names
    assert alone.fingerprint == divided.fingerprint


def test_what_ranks_would_cut_within_a_block_is_restored_and_has_other_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "fp8 blocks of 16")
    alone = load(folder)
    with caplog.at_level(logging.INFO):
        divided = load(folder, tp=2)
    assert "(way: native), to float32; 14 matrices stay float8" in caplog.text
    assert alone.fingerprint == divided.fingerprint

    coarse, _ = make_quantised(tmp_path / "coarse", Family.QWEN3, "fp8 blocks")
    alone, divided = load(coarse), load(coarse, tp=2)
    assert set(divided.decoder.scaled_names) < set(alone.decoder.scaled_names)
    assert alone.fingerprint != divided.fingerprint


def test_rows_that_a_checkpoint_fuses_are_taken_apart_with_their_scales(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.PHI3, "fp8 blocks of 16")
    qkv = load(folder).decoder.layers[0].attention.qkv
    assert isinstance(qkv, ScaledWeight)
    assert qkv.scales_BD.shape[0] == qkv.numbers.matrix_OC.shape[0] // 16
    assert qkv.scales_BD.isfinite().all()


def test_a_scale_of_a_whole_matrix_is_that_of_each_output(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.QWEN3, "fp8 per tensor")
    down = load(folder).decoder.layers[0].mlp.down
    restored = load_model(plain, device=CPU, dtype=torch.float32).decoder.layers[0].mlp.down
    assert isinstance(down, ScaledWeight)
    numbers = down.numbers.matrix_OC.float() * down.scales_BD
    torch.testing.assert_close(numbers, restored.matrix_OC.data)


def test_floats_where_float8_was_told_are_refused(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.QWEN3, "fp8 blocks of 16")
    (plain / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"expected float8.*Set model\.quantization"):
        load(plain)


def test_float8_takes_half_of_the_memory(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3_MOE, "fp8 blocks of 16")

    def expert_bytes(way: QuantizationWay) -> int:
        sizes = measure_model(folder, dtype="bfloat16", tp=1, page_size=16, way=way, device="cpu")
        return sizes.all_expert_bytes

    restored, kept = map(expert_bytes, (QuantizationWay.RESTORE, QuantizationWay.NATIVE))
    # A float32 scale for each 256 numbers.
    assert kept == restored / 2 * (1 + 4 / 256)


def test_random_float8_is_as_large_as_random_floats(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "fp8 blocks of 16")
    drawn = make_dummy_model(folder, device=CPU, dtype=torch.float32, config=native(folder))
    down = drawn.decoder.layers[0].mlp.down
    assert isinstance(down, ScaledWeight)
    assert 0.015 < float(down.numbers.matrix_OC.float().std() * down.scales_BD[0, 0]) < 0.025
