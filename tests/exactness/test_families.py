"""Every family answers as transformers does on the cpu, with 64 greedy tokens, from each tier.

Several ranks generate fewer from what is cached.
"""

import pytest
import torch

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.checkpoints import LOGITS_TOLERANCE
from tests.exactness.engines import engine_config, make_prompts
from tests.exactness.every_tier import assert_exact_from_every_tier
from tests.exactness.reference import NUM_TOKENS, References

PROMPTS = make_prompts(1, [1, 16, 49, 100])
NUM_TOKENS_OF_RANKS = 24
"""The length of answers, which go on into another page after each of the prompts."""


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

    await assert_exact_from_every_tier(config, expected, num_tokens, family)


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
