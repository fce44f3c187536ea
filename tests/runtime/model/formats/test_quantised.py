"""Every quantised format restores what its formula says, bit for bit, for every family."""

import dataclasses
import itertools
import json
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, check_weights, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.model.checkpoint.weight_files import list_weights
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.formats.scaled import ScaledLayout
from tests.checkpoints import make_checkpoint
from tests.quantised_checkpoints import SCHEMES, WHOLE_SIZES, make_quantised
from tests.quantised_matrices import fp8_in_blocks

CASES = sorted(
    {
        *itertools.product(("LLAMA", "QWEN3_MOE"), SCHEMES),
        *itertools.product([each.name for each in WHOLE_SIZES], ["gptq in any order", "nvfp4"]),
        *itertools.product([each.name for each in Family], ["fp8 blocks"]),
    }
)
SCHEME = "fp8 blocks"
"""The scheme of tests for which any would do."""
MATRIX = "model.layers.0.self_attn.k_proj"
SCALES = re.compile(rf"{MATRIX}\.(weight_scale(_inv)?|scales)")
Changes = dict[str, Tensor | None]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(folder, device=torch.device("cpu"), dtype=dtype)


def edit(folder: Path, changes: Changes) -> None:
    """Replace, add or (None) remove tensors."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))


def assert_refused(folder: Path, message: str) -> None:
    """Refused before Ray is started, by headers alone, and by whoever loads it."""
    refusals: tuple[Callable[[], object], ...] = (
        lambda: require_checkpoint(ModelSection(path=str(folder))),
        lambda: check_weights(folder, read_checkpoint_config(folder)),
        lambda: load(folder),
    )
    for refuse in refusals:
        with pytest.raises(CheckpointError, match=message):
            refuse()


@pytest.mark.part
@pytest.mark.parametrize(("family", "scheme"), CASES)
def test_weights_are_those_of_the_formula_rounded_once(
    family: str, scheme: str, tmp_path: Path
) -> None:
    quantised, plain = make_quantised(tmp_path, Family[family], scheme)
    require_checkpoint(ModelSection(path=str(quantised)))
    check_weights(quantised, read_checkpoint_config(quantised))

    for dtype in (torch.float32, torch.bfloat16):
        weights, expected = (load(folder, dtype).decoder.weights() for folder in (quantised, plain))
        assert weights.keys() == expected.keys()
        for name, part in weights.items():
            assert torch.equal(part.target, expected[name].target), name


@pytest.mark.part
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_and_a_plain_checkpoint_have_fingerprints_of_their_own(
    scheme: str, tmp_path: Path
) -> None:
    quantised, plain = (load(folder) for folder in make_quantised(tmp_path, Family.LLAMA, scheme))

    assert quantised.spec.digest() == plain.spec.digest()
    assert quantised.weight_fingerprint != plain.weight_fingerprint


@pytest.mark.part
@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_changed_scale_changes_the_fingerprint(scheme: str, tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.LLAMA, scheme)
    before = load(folder).weight_fingerprint
    tensors = load_file(folder / "model.safetensors")
    name = next(each for each in sorted(tensors) if SCALES.fullmatch(each))
    bytes_ = tensors[name].flatten().view(torch.uint8).clone()
    bytes_[0] ^= 1

    edit(folder, {name: bytes_.view(tensors[name].dtype).view(tensors[name].shape)})

    assert load(folder).weight_fingerprint != before


def test_the_same_tensors_under_another_config_are_other_weights(tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.LLAMA, SCHEME)
    before = load(folder).weight_fingerprint

    edit_config(folder, activation_scheme="static")

    assert load(folder).weight_fingerprint != before


MISFITS: dict[str, tuple[Changes, dict[str, Any], str]] = {
    "a scale is missing": (
        {f"{MATRIX}.weight_scale_inv": None},
        {},
        rf"has {MATRIX}\.weight without {MATRIX}\.weight_scale_inv; expected both",
    ),
    "a scale without its matrix": (
        {f"{MATRIX}.weight": None},
        {},
        rf"has {MATRIX}\.weight_scale_inv without {MATRIX}\.weight; expected both",
    ),
    "a scale that nobody uses": (
        {f"{MATRIX}.pre_quant_scale": torch.ones(48)},
        {},
        rf"Nothing needs tensor {MATRIX}\.pre_quant_scale",
    ),
    "a scale of a plain module": (
        {"lm_head.weight_scale_inv": torch.ones(4, 2)},
        {},
        r"has lm_head\.weight_scale_inv, but its config\.json tells of .* lm_head is not quantised",
    ),
    "other blocks": (
        {},
        {"weight_block_size": [8, 32]},
        r"down_proj\.weight_scale_inv in .* has shape \[2, 4\]; expected \[4, 2\]",
    ),
    "a module that is said to be plain": (
        {},
        {"modules_to_not_convert": ["self_attn.k_proj"]},
        rf"{MATRIX}\.weight in .* is F8_E4M3; expected one of F32, BF16, F16",
    ),
    "numbers of another kind": (
        {f"{MATRIX}.weight": torch.ones(16, 48, dtype=torch.int8)},
        {},
        rf"{MATRIX}\.weight in .* is I8; expected one of F8_E4M3",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_tensors_that_are_not_what_the_config_tells_are_refused_by_name(
    name: str, tmp_path: Path
) -> None:
    changes, config, message = MISFITS[name]
    folder, _ = make_quantised(tmp_path, Family.LLAMA, SCHEME)
    edit(folder, changes)
    edit_config(folder, **config)

    assert_refused(folder, message)


@pytest.mark.part
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_tensor_of_a_quantised_module_may_be_missing_or_too_many(
    scheme: str, tmp_path: Path
) -> None:
    folder, _ = make_quantised(tmp_path, Family.LLAMA, scheme)
    listed, quantisation = list_weights(folder), read_checkpoint_config(folder).quantisation
    parts = [each for each in listed if each.name.startswith(f"{MATRIX}.")]
    unused = quantisation.plan(listed).unused
    # Without it groups are those of inputs side by side, as the config says.
    may_lack = {f"{MATRIX}.g_idx"} if scheme != "gptq in any order" else set()

    for part in parts:
        without = [each for each in listed if each is not part]
        if part.name in unused | may_lack:
            quantisation.plan(without)
        else:
            with pytest.raises(CheckpointError, match=re.escape(MATRIX)):
                quantisation.plan(without)

        unknown = dataclasses.replace(part, name=f"{MATRIX}.weight_scale_3")
        with pytest.raises(CheckpointError, match=rf"Nothing needs tensor {unknown.name}"):
            quantisation.plan([*listed, unknown])


def test_scales_beside_floats_are_refused(tmp_path: Path) -> None:
    """Where config.json tells of floatsisation, a scale says that the floats are not all."""
    folder = make_checkpoint(tmp_path / "model", Family.LLAMA, seed=1)
    edit(folder, {f"{MATRIX}.weight_scale": torch.ones(16, 1)})

    assert_refused(folder, rf"has {MATRIX}\.weight_scale, but its config\.json tells of floats")


def test_the_section_of_the_language_model_may_tell_the_quantisation(tmp_path: Path) -> None:
    """Kimi-K2.5 has it there."""
    folder, plain = make_quantised(tmp_path, Family.GEMMA3_WITH_VISION, "int4 packed")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["quantization_config"] = config.pop("quantization_config")
    path.write_text(json.dumps(config))
    require_checkpoint(ModelSection(path=str(folder)))

    weights, expected = (load(each).decoder.weights() for each in (folder, plain))

    assert all(torch.equal(part.target, expected[name].target) for name, part in weights.items())


def test_floats_may_be_called_scales(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a family calls so; only bytes are scales of stacked experts."""
    folder = make_checkpoint(tmp_path / "model", Family.LLAMA, seed=1)
    edit(folder, {"model.layers.0.mlp.token_scales": torch.ones(4)})

    require_checkpoint(ModelSection(path=str(folder)))
    load(folder)

    assert "left aside: model.layers.0.mlp.token_scales" in caplog.text


def test_a_config_alone_makes_a_model_with_random_weights(tmp_path: Path) -> None:
    folder, plain = make_quantised(tmp_path, Family.QWEN3_MOE, SCHEME)
    (folder / "model.safetensors").unlink()
    require_checkpoint(ModelSection(path=str(folder), load_format="dummy"))

    ours, theirs = (
        make_dummy_model(each, device=torch.device("cpu"), dtype=torch.float32).decoder.weights()
        for each in (folder, plain)
    )

    assert all(torch.equal(part.target, theirs[name].target) for name, part in ours.items())


@pytest.mark.parametrize("shape", [(576, 256), (192, 320), (128, 128), (1, 130)])
def test_the_last_blocks_are_as_short_as_published_ones(shape: tuple[int, int]) -> None:
    """Keys and rotary keys of DeepSeek have 576 outputs: four blocks and a half."""
    generator = torch.Generator().manual_seed(1)
    matrix = fp8_in_blocks(torch.randn(shape, generator=generator), 128, 128)
    layout = ScaledLayout(dtype="F8_E4M3", block=(128, 128), scale=".weight_scale_inv")

    [(part, restored)] = layout.restore(matrix.parts)

    assert part == ".weight"
    assert torch.equal(restored, matrix.restored)


@pytest.mark.part
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tensors_of_a_module_are_read_one_after_another(scheme: str, tmp_path: Path) -> None:
    """Whoever restores holds one module, in whatever order files have the tensors."""
    folder, _ = make_quantised(tmp_path, Family.QWEN3_MOE, scheme)
    listed = list_weights(folder)
    random.Random(1).shuffle(listed)
    plan = read_checkpoint_config(folder).quantisation.plan(listed)

    modules = [each.name.rpartition(".")[0] for each in plan.arrange(listed)]

    assert len([name for name, _ in itertools.groupby(modules)]) == len(set(modules))
    as_listed = [each.name.rpartition(".")[0] for each in listed]
    assert len([name for name, _ in itertools.groupby(as_listed)]) > len(set(as_listed))


@pytest.mark.part
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_was_read_of_a_quantisation_is_the_same_in_another_process(
    scheme: str, tmp_path: Path
) -> None:
    folder, _ = make_quantised(tmp_path, Family.LLAMA, scheme)
    read = read_checkpoint_config(folder)

    assert pickle.loads(pickle.dumps(read)) == read


def test_the_log_says_format_way_and_what_is_left_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = make_quantised(tmp_path, Family.LLAMA, "fp8 per tensor")

    with caplog.at_level("INFO"):
        load(folder, torch.bfloat16)

    assert "weights: fp8, a scale per matrix (way: restore), to bfloat16" in caplog.text
    assert "scales that nothing needs are left aside: model.layers.0.mlp.down_proj" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_gpu_restores_the_same_numbers(scheme: str, tmp_path: Path) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3_MOE, scheme)
    expected = dict(load(folder).decoder.named_parameters())

    on_gpu = load_model(folder, device=torch.device("cuda"), dtype=torch.float32)

    for name, parameter in on_gpu.decoder.named_parameters():
        assert torch.equal(parameter.cpu(), expected[name]), name
