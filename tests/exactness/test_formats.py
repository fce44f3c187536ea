"""Quantised checkpoints answer as transformers does with the floats that they stand for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.errors import CheckpointError
from raydix.kernels.weights.int4_weight import Int4Weight
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.scaled_weight import SCALE, ScaledWeight
from raydix.kernels.weights.weight_part import WeightPart, cut
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    MAX_MODEL_LEN,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.every_tier import assert_exact_from_every_tier
from tests.exactness.native_reference import load_native
from tests.exactness.reference import Reference
from tests.quantised_checkpoints import SCHEMES, make_quantised

PROMPTS = make_prompts(5, [1, 49, 70])
NUM_TOKENS = 24
EACH_FAMILY = ("fp8 blocks", "int4 packed, zero points")
"""Schemes that are tried with every family, at every degree of parallelism."""
CASES = [
    *((Family.QWEN3, scheme, {"tp": 1}) for scheme in SCHEMES),
    (Family.QWEN3_5_TEXT, "fp8 blocks", {"tp": 1}),
    *(
        (family, scheme, places)
        for scheme in EACH_FAMILY
        for family, places in (
            (Family.QWEN3, {"tp": 2}),
            (Family.GEMMA3, {"tp": 2}),
            (Family.DEEPSEEK_V3, {"tp": 1}),
            (Family.DEEPSEEK_V3, {"tp": 2, "ep": 2}),
            (Family.QWEN3_MOE, {"tp": 2, "ep": 2}),
        )
    ),
]


@pytest.mark.part
@pytest.mark.parametrize(("family", "scheme", "places"), CASES, ids=str)
async def test_tokens_equal_those_of_the_restored_weights_from_every_tier(
    family: Family, scheme: str, places: dict[str, int], tmp_path: Path
) -> None:
    quantised, plain = make_quantised(tmp_path, family, scheme)
    expected = Reference(plain).expect(PROMPTS)
    config = engine_config(quantised, tmp_path / "l3", parallel=places)

    await assert_exact_from_every_tier(config, expected, NUM_TOKENS, family)


NATIVE = "fp8 blocks of 16"
NATIVE_SIZE = 16
NATIVE_CASES = [
    (Family.QWEN3, {"tp": 1}),
    (Family.QWEN3, {"tp": 2}),
    (Family.QWEN3_MOE, {"tp": 1}),
    (Family.QWEN3_MOE, {"tp": 2, "ep": 2}),
    (Family.DEEPSEEK_V3, {"tp": 1}),
    (Family.DEEPSEEK_V3, {"tp": 2, "ep": 2}),
    (Family.PHI3, {"tp": 1}),
]


def native_config(folder: Path, l3: Path | None = None, **sections: Any) -> EngineConfig:
    """An engine whose weights stay float8."""
    model = {"path": str(folder), "max_model_len": MAX_MODEL_LEN, "quantization": "native"}
    return engine_config(folder, l3, model=model, **sections)


@pytest.mark.part
@pytest.mark.parametrize(("family", "places"), NATIVE_CASES, ids=str)
async def test_tokens_equal_those_of_loops_over_float8_from_every_tier(
    family: Family, places: dict[str, int], tmp_path: Path
) -> None:
    quantised, plain = make_quantised(tmp_path, family, NATIVE)
    reference = Reference(plain, model=load_native(plain, quantised, NATIVE_SIZE))
    config = native_config(quantised, tmp_path / "l3", parallel=places)

    await assert_exact_from_every_tier(config, reference.expect(PROMPTS), NUM_TOKENS, family)


INT4_CASES = [
    (Family.QWEN3, "int4 packed, zero points", {"tp": 1}),
    (Family.QWEN3, "gptq", {"tp": 1}),
    (Family.QWEN3, "awq", {"tp": 2}),
    (Family.QWEN3_MOE, "gptq v2, zero points", {"tp": 2, "ep": 2}),
    (Family.DEEPSEEK_V3, "int4 packed", {"tp": 2, "ep": 2}),
]


@pytest.mark.part
@pytest.mark.parametrize(("family", "scheme", "places"), INT4_CASES, ids=str)
async def test_tokens_of_four_bits_equal_those_of_the_restored_weights_from_every_tier(
    family: Family, scheme: str, places: dict[str, int], tmp_path: Path
) -> None:
    quantised, plain = make_quantised(tmp_path, family, scheme)
    config = native_config(quantised, tmp_path / "l3", parallel=places)

    await assert_exact_from_every_tier(config, Reference(plain).expect(PROMPTS), NUM_TOKENS, family)


async def test_zero_points_that_change_places_are_found(tmp_path: Path) -> None:
    """The comparison is worth something: it fails when groups have one another's zero points."""
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, "awq")
    tensors = load_file(quantised / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.qzeros"
    tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, quantised / "model.safetensors")

    async with in_process_engine(native_config(quantised)) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, Reference(plain).expect(PROMPTS), outputs)


def int4_for_the_first(
    weight: Int4Weight, share: RankShare, num_inputs: int
) -> dict[str, WeightPart]:
    """A mutant: every rank takes the scales of the first."""
    whole_length = share.size * weight.scales_GO.shape[-2]
    scales = WeightPart(weight.scales_GO.data.mT, -1, 0, whole_length)
    return {**_INT4_COLUMNS(weight, share, num_inputs), SCALE: scales}


_INT4_COLUMNS = Int4Weight.column_parts


async def test_scales_of_four_bits_of_another_rank_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, "gptq")
    monkeypatch.setattr(Int4Weight, "column_parts", int4_for_the_first)

    async with in_process_engine(native_config(quantised, parallel={"tp": 2})) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, Reference(plain).expect(PROMPTS), outputs)


async def test_inputs_that_are_not_rounded_are_found(tmp_path: Path) -> None:
    """The comparison is worth something: it fails for the restored weights."""
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, NATIVE)
    reference = Reference(plain, model=load_native(plain, quantised, NATIVE_SIZE))

    async with in_process_engine(engine_config(quantised)) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


@pytest.mark.parametrize(("scheme", "is_native"), [("fp8 blocks", False), (NATIVE, True)])
async def test_two_scales_that_change_places_are_found(
    scheme: str, is_native: bool, tmp_path: Path
) -> None:
    """The comparison is worth something: it fails when the scales of two blocks are swapped."""
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, scheme)
    reference, config = Reference(plain), engine_config(quantised)
    if is_native:
        reference = Reference(plain, model=load_native(plain, quantised, NATIVE_SIZE))
        config = native_config(quantised)
    tensors = load_file(quantised / "model.safetensors")
    scales = tensors["model.layers.0.mlp.down_proj.weight_scale_inv"]
    first, second = int(scales.argmin()), int(scales.argmax())
    swapped = torch.arange(scales.numel())
    swapped[[first, second]] = swapped[[second, first]]
    scales.copy_(scales.flatten()[swapped].view(scales.shape))
    save_file(tensors, quantised / "model.safetensors")

    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


def cut_by_rows(weight: ScaledWeight, share: RankShare, num_inputs: int) -> dict[str, WeightPart]:
    """A mutant: scales are cut along the outputs, whose numbers are not."""
    scales = cut(weight.scales_BD, share, 2 * weight.scales_BD.shape[-2], dim=-2)
    return {**weight.numbers.column_parts(share, num_inputs), SCALE: scales}


def cut_for_the_first(
    weight: ScaledWeight, share: RankShare, num_inputs: int
) -> dict[str, WeightPart]:
    """A mutant: every rank takes the scales of the first."""
    whole_length = share.size * weight.scales_BD.shape[-1]
    scales = WeightPart(weight.scales_BD, -1, 0, whole_length)
    return {**weight.numbers.column_parts(share, num_inputs), SCALE: scales}


async def test_scales_cut_along_the_wrong_axis_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised, _ = make_quantised(tmp_path, Family.QWEN3, NATIVE)
    monkeypatch.setattr(ScaledWeight, "column_parts", cut_by_rows)

    with pytest.raises(CheckpointError, match=r"_scale has shape .*; the config asks for"):
        async with in_process_engine(native_config(quantised, parallel={"tp": 2})):
            pass


async def test_scales_of_another_rank_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, NATIVE)
    reference = Reference(plain, model=load_native(plain, quantised, NATIVE_SIZE))
    monkeypatch.setattr(ScaledWeight, "column_parts", cut_for_the_first)

    async with in_process_engine(native_config(quantised, parallel={"tp": 2})) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


async def test_pages_of_restored_and_of_native_weights_are_never_taken_for_each_other(
    tmp_path: Path,
) -> None:
    quantised, _ = make_quantised(tmp_path, Family.QWEN3, NATIVE)
    sources = []
    for make in (engine_config, native_config, engine_config, native_config):
        async with in_process_engine(make(quantised, tmp_path / "l3")) as engine:
            outputs = await run(engine, PROMPTS, NUM_TOKENS)
            await engine.settle()
        sources.append(count_tokens(outputs, "l3"))

    num_cacheable = sum(cacheable_tokens(prompt) for prompt in PROMPTS)
    assert sources == [0, 0, num_cacheable, num_cacheable]


async def test_pages_of_the_restored_floats_are_never_taken_for_those_of_a_quantised_checkpoint(
    tmp_path: Path,
) -> None:
    """They are not found the other way round either, though both compute the same."""
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, "fp8 blocks")
    sources = []
    for folder in (plain, quantised, plain, quantised):
        config = engine_config(folder, tmp_path / "l3")
        async with in_process_engine(config) as engine:
            outputs = await run(engine, PROMPTS, NUM_TOKENS)
            await engine.settle()
        sources.append(count_tokens(outputs, "l3"))

    num_cacheable = sum(cacheable_tokens(prompt) for prompt in PROMPTS)
    assert sources == [0, 0, num_cacheable, num_cacheable]
