"""Biased requests answer as transformers does with `sequence_bias`, beside others and alone."""

import asyncio
import itertools
import random
from functools import partial
from typing import Any

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import VOCAB_SIZE, assert_all_exact, engine_config, make_prompts, run
from tests.exactness.reference import GREEDY, Expected, References, generate

PROMPTS = make_prompts(5, [7, 49, 100])
NUM_TOKENS = 24


def random_biases(seed: int, num_tokens: int) -> dict[int, float]:
    """Random biases of so many tokens, large enough to change what a small random model says."""
    rng = random.Random(seed)
    return {i: rng.uniform(-2.0, 2.0) for i in rng.sample(range(VOCAB_SIZE), num_tokens)}


CASES: list[dict[str, Any]] = [
    {"logit_bias": random_biases(1, 40)},
    {"logit_bias": dict.fromkeys(range(20, VOCAB_SIZE), -100)},
    {"logit_bias": random_biases(2, 100), "repetition_penalty": 1.3},
    {"logit_bias": {**random_biases(3, 60), 4: 3.0}, "min_tokens": 9, "stop_token_ids": [4]},
]


def in_transformers(case: dict[str, Any]) -> dict[str, Any]:
    """The same options by its names. It, too, adds biases before it penalises."""
    options: dict[str, Any] = {
        "sequence_bias": {(i,): float(bias) for i, bias in case["logit_bias"].items()}
    }
    if "repetition_penalty" in case:
        options["repetition_penalty"] = case["repetition_penalty"]
    if "min_tokens" in case:
        options |= {"min_new_tokens": case["min_tokens"], "eos_token_id": case["stop_token_ids"]}
    return options


def num_decided(expected: Expected) -> int:
    """Tokens before the first that rounding may change."""
    tokens = range(len(expected.token_ids))
    return next((i for i in tokens if not expected.is_decided(i)), len(tokens))


@pytest.mark.part
async def test_biased_tokens_equal_those_of_transformers(
    caching_kind: Family, device: str, tp: int, references: References
) -> None:
    reference = references(caching_kind)
    config = engine_config(
        reference.folder, model={"device": device, "dtype": "float32"}, parallel={"tp": tp}
    )
    plain = reference.expect(PROMPTS)
    asked = list(itertools.product(CASES, PROMPTS))
    total = 0

    async with in_process_engine(config) as engine:
        generate_one = partial(generate, engine.client, num_tokens=NUM_TOKENS)
        cold = [await generate_one(prompt, sampling={**GREEDY, **case}) for case, prompt in asked]
        again = [generate_one(prompt, sampling={**GREEDY, **case}) for case, prompt in asked]
        from_l1 = await asyncio.gather(*again)
        for (case, prompt), *outputs in zip(asked, cold, from_l1, strict=True):
            expected = reference.expect_with(prompt, NUM_TOKENS, **in_transformers(case))
            num = num_decided(expected)
            for output in outputs:
                assert output.outputs[0].token_ids[:num] == expected.token_ids[:num]
            total += num
        # What they left behind in the slots does not concern others.
        await assert_all_exact(engine, plain, await run(engine, PROMPTS, NUM_TOKENS))
        await engine.check()

    assert total > NUM_TOKENS * len(asked) / 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_bias_neither_reaches_others_nor_depends_on_them(
    temperature: float, references: References
) -> None:
    config = engine_config(references(Family.QWEN3).folder)
    biased = {"temperature": temperature, "seed": 5, **CASES[0]}
    plain = {"temperature": temperature, "seed": 6}

    async with in_process_engine(config) as engine:
        alone = [
            (await generate(engine.client, PROMPTS[1], NUM_TOKENS, each)).outputs[0].token_ids
            for each in (biased, plain)
        ]
        for num_others in (1, 5):
            others = make_prompts(9, [33] * num_others)
            outputs = await _beside(engine, others, [biased, plain])
            assert outputs == alone
        await engine.check()


async def _beside(engine: Any, others: Any, sampling: list[dict[str, Any]]) -> list[list[int]]:
    asked = [generate(engine.client, PROMPTS[1], NUM_TOKENS, each) for each in sampling]
    outputs = await asyncio.gather(*asked, run(engine, others, NUM_TOKENS, {"logit_bias": {3: 50}}))
    return [output.outputs[0].token_ids for output in outputs[:-1]]
