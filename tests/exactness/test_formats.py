"""Quantised checkpoints answer as transformers does with the floats that they stand for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.every_tier import assert_exact_from_every_tier
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


async def test_two_scales_that_change_places_are_found(tmp_path: Path) -> None:
    """The comparison is worth something: it fails when the scales of two blocks are swapped."""
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, "fp8 blocks")
    tensors = load_file(quantised / "model.safetensors")
    scales = tensors["model.layers.0.mlp.down_proj.weight_scale_inv"]
    first, second = int(scales.argmin()), int(scales.argmax())
    swapped = torch.arange(scales.numel())
    swapped[[first, second]] = swapped[[second, first]]
    scales.copy_(scales.flatten()[swapped].view(scales.shape))
    save_file(tensors, quantised / "model.safetensors")

    async with in_process_engine(engine_config(quantised)) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, Reference(plain).expect(PROMPTS), outputs)


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
