"""Which weights stay in float8: how they are stored, where the model runs, how ranks cut them."""

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

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
from raydix.runtime.model.checkpoint.native_weights import kept_forms, with_scaled_parts
from raydix.runtime.model.decoder.decoder import make_decoder
from raydix.runtime.model.families.table import Family
from tests.checkpoint_configs import COMMON, CONFIGS, PER_FAMILY
from tests.quantised_checkpoints import SCHEMES, make_quantised

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


@pytest.mark.part
@pytest.mark.parametrize("scheme", ["fp8 blocks of 16", "fp8 blocks", "gptq"])
@pytest.mark.parametrize("family", Family)
def test_layers_say_what_a_decoder_keeps_and_nothing_else(
    family: Family, scheme: str, tmp_path: Path
) -> None:
    fields = {**COMMON, **PER_FAMILY[family]}
    CONFIGS[family](**fields).save_pretrained(tmp_path)
    told = {"model_type": family.value.model_type, "quantization_config": SCHEMES[scheme].config}
    change_config(tmp_path, **told)
    config = read_checkpoint_config(tmp_path)
    may_stay = kept_forms(QuantizationWay.NATIVE, "cpu", None)
    assert may_stay is not None

    spec = with_scaled_parts(config.spec, family.value, config.quantisation.layouts, may_stay)

    decoder = make_decoder(spec, device=torch.device("meta"), dtype=torch.float32)
    kept = {re.sub(r"experts\.\d+", "experts", name) for name in decoder.scaled_names}
    assert kept == {
        f"layers.{index}.{part.name}"
        for index, layer in enumerate(spec.layers)
        for part in layer.scaled
    }


def test_rows_that_lie_one_behind_another_stay(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.QWEN3_5_TEXT, "fp8 blocks of 16")
    kept = load(folder).decoder
    names = {name for name in kept.scaled_names if name.startswith("layers.0.attention.")}
    assert names == {
        f"layers.0.attention.delta.{each}" for each in ("q", "k", "v", "gate", "output")
    }

    floats = load_model(plain, device=CPU, dtype=torch.float32).decoder.layers[0].attention
    for part in ("inputs", "gate", "output"):
        weight = getattr(kept.layers[0].attention, part)
        scales_OC = weight.scales_BD.repeat_interleave(16, 0).repeat_interleave(16, 1)
        restored_OC = weight.numbers.matrix_OC.float() * scales_OC
        assert torch.equal(restored_OC, getattr(floats, part).matrix_OC), part


def test_rows_in_turns_are_restored(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3_NEXT, "fp8 blocks of 16")
    kept = [name for name in load(folder).decoder.scaled_names if ".attention.delta." in name]
    assert {name.rpartition(".")[2] for name in kept} == {"output"}


@pytest.mark.parametrize("way", QuantizationWay)
def test_a_fused_matrix_that_was_left_in_floats_is_asked_for_by_its_own_name(
    way: QuantizationWay, tmp_path: Path
) -> None:
    folder, plain = make_quantised(tmp_path, Family.PHI3, "float8 per output")
    leave_in_floats(folder, plain, "self_attn.qkv_proj")

    config = read_checkpoint_config(folder).served(way, "cpu", None)
    if way is QuantizationWay.AUTO:
        config = read_checkpoint_config(folder).served(way, "cuda", HOPPER)
    loaded = load_model(folder, device=CPU, dtype=torch.float32, config=config)

    kept = {name.rpartition(".")[2] for name in loaded.decoder.scaled_names}
    expected = set() if way is QuantizationWay.RESTORE else {"output", "gate", "up", "down"}
    assert kept == expected


def leave_in_floats(folder: Path, plain: Path, module: str) -> None:
    """Store a module of all layers as it was before, and say so."""
    tensors, floats = (
        load_file(folder / "model.safetensors"),
        load_file(plain / "model.safetensors"),
    )
    others = {name: each for name, each in tensors.items() if module not in name}
    own = {name: each for name, each in floats.items() if module in name}
    save_file(others | own, folder / "model.safetensors")
    told = json.loads((folder / "config.json").read_text())["quantization_config"]
    ignored = [*told["ignore"], *(name.removesuffix(".weight") for name in own)]
    change_config(folder, quantization_config={**told, "ignore": ignored})


def change_config(folder: Path, **fields: object) -> None:
    """Set fields of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_what_no_layer_keeps_does_not_make_the_way_native(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.QWEN3_NEXT, "float8 per output")
    for module in ("mlp.", "self_attn.", "linear_attn.out_proj"):
        leave_in_floats(folder, plain, module)
    config = read_checkpoint_config(folder)

    with pytest.raises(ConfigError, match="no weight can stay as it is stored"):
        native(folder)
    restored = config.served(QuantizationWay.AUTO, "cuda", AMPERE)
    assert config.served(QuantizationWay.AUTO, "cuda", HOPPER) == restored


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
