"""Logprobs of prompts are those of transformers, whatever is cached of them and however they are
cut, and such requests say that they took nothing from a cache.
"""

import asyncio
from pathlib import Path

import pytest

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.checkpoints import LOGITS_TOLERANCE
from tests.exactness.engines import (
    CACHING_KINDS,
    assert_all_exact,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import GREEDY, Prompt, Reference, References
from tests.exactness.states import State, reach

PROMPTS = make_prompts(21, [1, 2, 16, 49, 130], num_shared=10)
"""Chunks of three pages cut the last two."""
NUM_TOKENS = 10
NUM_TOP = 4
SCORED = {**GREEDY, "prompt_logprobs": NUM_TOP}
KINDS = [*CACHING_KINDS, Family.QWEN3_MOE]


def assert_scored(reference: Reference, output: RequestOutput) -> None:
    """The logprobs of a prompt are those of its logits in transformers."""
    told = output.prompt_logprobs
    prompt = tuple(output.prompt_token_ids)
    assert told is not None
    assert len(told) == len(prompt)
    assert told[0] is None
    logits = reference.logits_of(prompt)
    wanted = logits.log_softmax(-1)
    tolerance = 2 * LOGITS_TOLERANCE * float(logits.abs().max())

    for place, entry in enumerate(told[1:]):
        assert entry is not None
        assert next(iter(entry)) == prompt[place + 1]
        assert len(entry) in (NUM_TOP, NUM_TOP + 1)
        assert sorted(each.rank for each in entry.values())[:NUM_TOP] == [1, 2, 3, 4]
        least = wanted[place].topk(NUM_TOP).values[-1]
        for token_id, each in entry.items():
            logprob = float(wanted[place, token_id])
            assert each.logprob == pytest.approx(logprob, abs=tolerance)
            assert each.rank > NUM_TOP or logprob >= least - tolerance


def assert_uncached(outputs: list[RequestOutput]) -> None:
    """They took nothing from a cache and say why."""
    for output in outputs:
        assert output.num_cached_tokens == 0
        assert set(output.metrics.cached_tokens_by_source) <= {
            "computed:prompt_logprobs",
            "computed:partial_page",
        }


async def assert_all_scored(
    engine: InProcessEngine, reference: Reference, prompts: list[Prompt], num_tokens: int
) -> None:
    """All prompts at once, each beside requests that do not ask."""
    both = await asyncio.gather(
        run(engine, prompts, num_tokens, SCORED), run(engine, prompts, num_tokens)
    )
    for outputs in both:
        await assert_all_exact(engine, reference.expect(prompts), outputs)
    assert_uncached(both[0])
    for output in both[0]:
        assert_scored(reference, output)
    assert all(output.prompt_logprobs is None for output in both[1])


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("state", [State.COLD, State.L1, State.L2, State.L3])
async def test_prompts_are_scored_as_by_transformers_in_every_state(
    family: Family, state: State, device: str, tp: int, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    config = engine_config(
        reference.folder,
        tmp_path,
        model={"device": device, "dtype": "float32"},
        parallel={"tp": tp},
    )

    async with in_process_engine(config) as engine:
        await reach(engine, config, state, PROMPTS)
        await assert_all_scored(engine, reference, PROMPTS, NUM_TOKENS)
        await engine.check()
