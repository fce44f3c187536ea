"""Every family answers as transformers does on the cpu, with 64 greedy tokens, from each tier.

Several ranks generate fewer from what is cached.
"""

import pytest
import torch

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.checkpoints import LOGITS_TOLERANCE
from tests.exactness.engines import (
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import NUM_TOKENS, References

PROMPTS = make_prompts(1, [1, 16, 49, 100])
NUM_TOKENS_OF_RANKS = 24
"""The length of answers, which go on into another page after each of the prompts."""
NUM_CACHEABLE = sum(cacheable_tokens(prompt) for prompt in PROMPTS)


@pytest.mark.part
@pytest.mark.parametrize("family", list(Family))
async def test_tokens_equal_those_of_transformers_from_every_tier(
    family: Family,
    device: str,
    tp: int,
    references: References,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    reference = references(family)
    expected = reference.expect(PROMPTS)
    config = engine_config(
        reference.folder,
        tmp_path_factory.mktemp("l3"),
        model={"device": device, "dtype": "float32"},
        parallel={"tp": tp},
    )
    num_tokens = NUM_TOKENS if tp == 1 else NUM_TOKENS_OF_RANKS

    async with in_process_engine(config) as engine:
        cold = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, expected, cold)
        assert count_tokens(cold, "l1") + count_tokens(cold, "l2") + count_tokens(cold, "l3") == 0

        await engine.settle()
        outputs = await run(engine, PROMPTS, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l1") == NUM_CACHEABLE

        await engine.settle()
        await engine.flush_l1()
        outputs = await run(engine, PROMPTS, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l2") == NUM_CACHEABLE

        await engine.settle()
        await engine.flush()
        outputs = await run(engine, PROMPTS, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        await engine.check()

    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize("family", list(Family))
async def test_logprobs_equal_those_of_transformers(family: Family, references: References) -> None:
    reference = references(family)
    [expected] = reference.expect([PROMPTS[-1]])
    num_decided = next((i for i in range(NUM_TOKENS) if not expected.is_decided(i)), NUM_TOKENS)
    params = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "logprobs": 5, "output_kind": "final"}

    async with in_process_engine(engine_config(reference.folder)) as engine:
        for _ in range(2):  # cold, then from L1
            [output] = [
                output async for output in engine.client.generate(list(PROMPTS[-1]), params)
            ]
            found = output.outputs[0].logprobs
            assert found is not None
            wanted = torch.log_softmax(expected.logits, dim=-1)
            tolerance = 2 * LOGITS_TOLERANCE * float(expected.logits.abs().max())
            for position in range(num_decided):
                for token_id, each in found[position].items():
                    assert each.logprob == pytest.approx(
                        float(wanted[position, token_id]), abs=tolerance
                    )
        await engine.check()
