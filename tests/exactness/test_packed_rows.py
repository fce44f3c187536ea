"""Rows that travel to experts as float8: exact in every state, as transformers is that rounds."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from raydix.kernels.ops import ReferenceOps
from raydix.kernels.reference.packed_rows import pack_rows
from raydix.moe.dispatch.transport import Transport
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.checkpoints import load_in_transformers, make_checkpoint
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
from tests.quantised_checkpoints import make_quantised

FAMILIES = [Family.QWEN3_MOE, Family.GPT_OSS, Family.DEEPSEEK_V3, Family.GLM4_MOE]
PLACES = [{"dp": 2, "ep": 2}, {"tp": 2, "ep": 2}]
PROMPTS = make_prompts(57, [100, 70, 3, 49, 1])
NUM_TOKENS = 24
MIN_GAP = 0.02
"""Numbers that are not rounded alike, as products differ in their last bit, are a step apart."""
WIDE = {"hidden_size": 160}
"""Rows of two blocks, of which the second is shorter."""


def packed_config(folder: Path, l3: Path | None = None, **sections: Any) -> EngineConfig:
    sections = {"parallel": PLACES[0], **sections}
    return engine_config(folder, l3, experts={"transport": "fp8"}, **sections)


def rounding(model: Any) -> Any:
    """Let the experts of a model of transformers, and they alone, read rounded rows."""
    modules = [each for name, each in model.named_modules() if name.endswith(".experts")]
    assert modules, "a model without experts rounds nothing"
    for each in modules:
        each.register_forward_pre_hook(round_first, with_kwargs=True)
    return model


def round_first(
    module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Round the rows that a module is given, its first argument."""
    rows, *others = arguments
    rounded = [_rounded(row) for row in rows.reshape(-1, rows.shape[-1])]
    return (torch.stack(rounded).view_as(rows), *others), named


def _rounded(row: Tensor) -> Tensor:
    return torch.cat(list(_rounded_blocks(row)))


def _rounded_blocks(row: Tensor) -> Iterator[Tensor]:
    for block in row.split(128):
        largest = max(float(block.abs().max()), 2.0**-100)
        scale = 2.0 ** math.ceil(math.log2(largest / 448))
        yield (block / scale).to(torch.float8_e4m3fn).float() * scale


def make_reference(folder: Path, family: Family) -> Reference:
    make_checkpoint(folder, family, seed=3, **WIDE)
    return Reference(folder, min_gap=MIN_GAP, model=rounding(load_in_transformers(folder)))


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("places", PLACES, ids=["lanes", "tensors"])
async def test_tokens_are_those_of_rounded_rows_from_every_tier(
    family: Family, places: dict[str, int], tmp_path: Path
) -> None:
    reference = make_reference(tmp_path / "model", family)
    config = packed_config(reference.folder, tmp_path / "l3", parallel=places)

    await assert_exact_from_every_tier(config, reference.expect(PROMPTS), NUM_TOKENS, family)


async def test_steps_in_two_halves_round_alike(tmp_path: Path) -> None:
    reference = make_reference(tmp_path, Family.QWEN3_MOE)
    experts = {"transport": "fp8", "overlap": "on"}
    config = engine_config(reference.folder, parallel=PLACES[0], experts=experts)
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


@pytest.mark.part
@pytest.mark.parametrize("family", [Family.QWEN3_MOE, Family.DEEPSEEK_V3])
async def test_weights_in_float8_take_rows_as_they_have_come(
    family: Family, tmp_path: Path
) -> None:
    """Rows are rounded by 128 numbers on their way, and by 16 for products: once, for all that."""
    quantised, plain = make_quantised(tmp_path, family, "fp8 blocks of 16")
    model = {"path": str(quantised), "max_model_len": MAX_MODEL_LEN, "quantization": "native"}
    config = packed_config(quantised, tmp_path / "l3", model=model, parallel=PLACES[1])
    native = load_native(plain, quantised, 16)

    expected = Reference(plain, min_gap=MIN_GAP, model=rounding(native)).expect(PROMPTS)

    await assert_exact_from_every_tier(config, expected, NUM_TOKENS, family)


@pytest.mark.parametrize("transport", list(Transport))
async def test_rows_that_are_not_rounded_are_found(transport: Transport, tmp_path: Path) -> None:
    """The comparison is worth something: either reference differs from the other engine."""
    rounded = make_reference(tmp_path, Family.QWEN3_MOE)
    other = Reference(tmp_path) if transport is Transport.FP8 else rounded
    config = engine_config(tmp_path, parallel=PLACES[0], experts={"transport": transport.value})
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, other.expect(PROMPTS), outputs)


def with_swapped_scales(x_TC: Tensor) -> Tensor:
    """A mutant: the first two rows of a step have each other's scales."""
    packed_TB = pack_rows(x_TC)
    packed_TB[:2, :8] = packed_TB[:2, :8].flip(0)
    return packed_TB


async def test_scales_of_two_rows_that_change_places_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_reference(tmp_path, Family.QWEN3_MOE)
    monkeypatch.setattr(ReferenceOps, "pack_rows", staticmethod(with_swapped_scales))
    async with in_process_engine(packed_config(tmp_path)) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


async def test_pages_of_rounded_rows_are_kept_apart(tmp_path: Path) -> None:
    folder, l3 = tmp_path / "model", tmp_path / "l3"
    reference = make_reference(folder, Family.QWEN3_MOE)
    for transport, found in (("auto", 0), ("fp8", 0), ("fp8", 1)):
        config = engine_config(folder, l3, parallel=PLACES[0], experts={"transport": transport})
        async with in_process_engine(config) as engine:
            outputs = await run(engine, PROMPTS, NUM_TOKENS)
            assert count_tokens(outputs, "l3") == found * sum(map(cacheable_tokens, PROMPTS))
            if transport == "fp8":
                await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
            await engine.settle()
