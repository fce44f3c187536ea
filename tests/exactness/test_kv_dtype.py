"""Keys and values cached in FP8: exact in every state, as transformers is with a rounded cache."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
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
from tests.exactness.poison import Poison, poison
from tests.exactness.reference import NUM_TOKENS, Reference, References
from tests.exactness.states import State, reach

FAMILIES = [
    Family.QWEN3,
    Family.GEMMA3,
    Family.MISTRAL,
    Family.GPT_OSS,
    Family.QWEN3_MOE,
    Family.MIMO_V2_FLASH,
    Family.GEMMA4_WITH_TOWERS,
    Family.QWEN3_NEXT,
]
PROMPTS = make_prompts(53, [1, 49, 100, 98])
Scales = Mapping[int, tuple[float, float]]
"""The scales of keys and values, by layer."""
SCALES: Scales = {0: (0.01, 40.0), 1: (30.0, 0.002)}
"""Scales of keys and values so small, or large, that without them little is left of both."""
MAX_LOGPROB_ERROR = 1.0
"""The largest error of the likeliest tokens; a model with random weights is far more sensitive than
a trained one.
"""
MIN_GAP = 0.02
"""Numbers that are not rounded alike, as products differ in their last bit, are a step apart."""


class RoundedCache(DynamicCache):
    """What transformers computes with if keys and values are kept in FP8."""

    def __init__(self, config: Any, scales: Scales) -> None:
        super().__init__(config=config)
        self._scales = scales

    def update(
        self, key_states: Any, value_states: Any, layer_idx: int, *others: Any, **more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep and return what FP8 leaves of both."""
        k_scale, v_scale = self._scales.get(layer_idx, (1.0, 1.0))
        rounded = _rounded(key_states, k_scale), _rounded(value_states, v_scale)
        return super().update(*rounded, layer_idx, *others, **more)


def _rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def rounded_cache(scales: Scales) -> Callable[[Any], RoundedCache]:
    return lambda config: RoundedCache(config.get_text_config(), scales)


def fp8_config(folder: Path, l3: Path | None = None, **sections: Any) -> EngineConfig:
    cache = {"kv_dtype": "fp8_e4m3"}
    return engine_config(folder, l3, **{"model": {"dtype": "float32"}, **sections}, cache=cache)


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "place", "num_ranks"),
    [
        *((family, "cpu", 1) for family in FAMILIES),
        *((family, "cpu", 2) for family in FAMILIES[:2]),
        *(pytest.param(family, "cuda", 1, marks=pytest.mark.gpu) for family in FAMILIES),
    ],
    ids=str,
)
async def test_tokens_are_those_of_a_rounded_cache_from_every_tier(
    references: References, family: Family, place: str, num_ranks: int, tmp_path: Path
) -> None:
    reference = Reference(references(family).folder, rounded_cache({}), MIN_GAP)
    model = {"device": place, "dtype": "float32"}
    config = fp8_config(reference.folder, tmp_path, model=model, parallel={"tp": num_ranks})

    await assert_exact_from_every_tier(config, reference.expect(PROMPTS), NUM_TOKENS // 2, family)


def with_scales(folder: Path, to: Path, scales: Mapping[str, tuple[float, ...]]) -> Path:
    """A copy of a checkpoint that has these tensors, too."""
    shutil.copytree(folder, to)
    weights = to / "model.safetensors"
    more = {name: torch.tensor(values) for name, values in scales.items()}
    save_file({**load_file(weights), **more}, weights)
    return to


def scale_names(scales: Scales) -> dict[str, tuple[float, ...]]:
    return {
        f"model.layers.{layer}.self_attn.{name}": (value,)
        for layer, both in scales.items()
        for name, value in zip(("k_scale", "v_scale"), both, strict=True)
    }


@pytest.mark.parametrize(
    ("family", "tp"), [(Family.QWEN3, 2), (Family.GEMMA4_WITH_TOWERS, 1)], ids=str
)
async def test_scales_of_the_checkpoint_are_used(
    references: References, family: Family, tp: int, tmp_path: Path
) -> None:
    folder = with_scales(references(family).folder, tmp_path / "scaled", scale_names(SCALES))
    reference = Reference(references(family).folder, rounded_cache(SCALES), MIN_GAP)
    config = fp8_config(folder, tmp_path / "l3", parallel={"tp": tp})

    await assert_exact_from_every_tier(config, reference.expect(PROMPTS), NUM_TOKENS // 4, family)


async def test_scales_that_change_places_are_found(references: References, tmp_path: Path) -> None:
    """The comparison above is worth something."""
    folder = references(Family.QWEN3).folder
    reference = Reference(folder, rounded_cache(SCALES), MIN_GAP)
    swapped = {layer: (values, keys) for layer, (keys, values) in SCALES.items()}
    scaled = with_scales(folder, tmp_path / "scaled", scale_names(swapped))

    async with in_process_engine(fp8_config(scaled)) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS // 4)
        with pytest.raises(AssertionError, match="the reference's gap"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


async def test_answers_are_near_those_without_rounding_and_not_the_same(
    references: References,
) -> None:
    folder = references(Family.QWEN3).folder
    params = {"temperature": 0.0, "logprobs": 20}
    errors = []
    async with in_process_engine(engine_config(folder)) as engine:
        exact = await run(engine, PROMPTS, 1, params)
    async with in_process_engine(fp8_config(folder)) as engine:
        rounded = await run(engine, PROMPTS, 1, params)
    for left, right in zip(exact, rounded, strict=True):
        [before], [after] = left.outputs[0].logprobs, right.outputs[0].logprobs
        errors += [
            abs(before[token].logprob - after[token].logprob)
            for token in before.keys() & after.keys()
        ]

    assert 1e-3 < max(errors) < MAX_LOGPROB_ERROR


@pytest.mark.parametrize("state", [State.L1, State.L2, State.L3])
async def test_a_wrong_page_is_found(references: References, state: State, tmp_path: Path) -> None:
    """The poisoned control of all these tests."""
    reference = Reference(references(Family.QWEN3).folder, rounded_cache({}), MIN_GAP)
    config = fp8_config(reference.folder, tmp_path)
    async with in_process_engine(config) as engine:
        await reach(engine, config, state, PROMPTS)
        poison(engine, tmp_path, state, Poison.ANOTHER, PROMPTS[2], PROMPTS[3])

        outputs = await run(engine, PROMPTS, NUM_TOKENS // 4)
        with pytest.raises(AssertionError, match="the reference's gap"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


async def test_pages_of_other_dtypes_and_scales_are_never_taken(
    references: References, tmp_path: Path
) -> None:
    folder, l3 = references(Family.QWEN3).folder, tmp_path / "l3"
    scaled = with_scales(folder, tmp_path / "scaled", scale_names(SCALES))
    found = []
    for config in (
        engine_config(folder, l3),
        fp8_config(folder, l3),
        fp8_config(scaled, l3),
        fp8_config(folder, l3, model={"dtype": "bfloat16"}),
        # Without FP8 they change nothing.
        engine_config(scaled, l3),
    ):
        async with in_process_engine(config) as engine:
            found.append(count_tokens(await run(engine, PROMPTS, 1), "l3"))
            await engine.check()

    assert found == [0, 0, 0, 0, sum(map(cacheable_tokens, PROMPTS))]
    assert len(list(l3.glob("*/manifest.json"))) == 4


async def test_twice_the_tokens_fit_into_the_same_memory(references: References) -> None:
    folder = references(Family.QWEN3).folder
    sizes = []
    for cache in ({}, {"kv_dtype": "fp8_e4m3"}):
        config = engine_config(folder, model={"dtype": "bfloat16"}, cache=cache)
        async with in_process_engine(config) as engine:
            sizes.append([engine.facts.layout.token_bytes, engine.facts.layout.payload_bytes(0)])

    assert sizes[0] == [2 * size for size in sizes[1]]


async def test_latents_in_fp8_are_refused_by_name(references: References) -> None:
    with pytest.raises(ConfigError, match="kv_dtype is fp8_e4m3; this model caches latents"):
        async with in_process_engine(fp8_config(references(Family.DEEPSEEK_V3).folder)):
            pass
