"""Sliding windows: wherever a prefix and its windows are, the answers are those of transformers.

All layers of the small Mistral look back over 20 tokens, and every other one of the small Gemma 2.
"""

from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    assert_all_exact,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import NUM_TOKENS, Prompt, References

FAMILIES = [Family.GEMMA2, Family.MISTRAL]
SHARED = 5 * PAGE_SIZE
SMALL_POOL: dict[str, Any] = {
    "cache": {"l1": {"tokens_per_window": 8192}},
    "scheduler": {"max_running_requests": 2},
}
"""The window pool has room for two requests, and little else."""


class Asker:
    """Asks one thing after another, and compares each answer with that of transformers."""

    def __init__(self, engine: InProcessEngine, references: References, family: Family) -> None:
        self.engine = engine
        self._reference = references(family)

    async def ask(self, *prompts: Prompt) -> list[RequestOutput]:
        """All of these at once; returns the answers once nothing is on its way to L2 any more."""
        outputs = await run(self.engine, prompts, NUM_TOKENS)
        await assert_all_exact(self.engine, self._reference.expect(prompts), outputs)
        await self.engine.settle()
        await self.engine.check()
        return outputs


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_prefix_whose_windows_have_left_l1_takes_them_from_l2(
    family: Family, references: References
) -> None:
    [prompt] = make_prompts(7, [100])
    fillers = make_prompts(8, [90] * 4)
    # All layers of Mistral share one pool: it has to be small.
    num_pages = 20 if family is Family.MISTRAL else 128
    changes = {**SMALL_POOL, "cache": {"l1": {"num_pages": num_pages, "tokens_per_window": 8192}}}
    async with in_process_engine(engine_config(references(family).folder, **changes)) as engine:
        asker = Asker(engine, references, family)
        await asker.ask(prompt)
        for filler in fillers:
            await asker.ask(filler)
        outputs = await asker.ask(prompt)
        assert count_tokens(outputs, "l2") > 0, "its windows"
        assert count_tokens(outputs, "l1") + count_tokens(outputs, "l2") == 96


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
async def test_prompts_that_part_behind_a_prefix_share_it_in_every_tier(
    family: Family, references: References, tmp_path: Path
) -> None:
    prompts = make_prompts(9, [100, 105, 121, 97], num_shared=SHARED)
    config = engine_config(references(family).folder, tmp_path, **SMALL_POOL)
    async with in_process_engine(config) as engine:
        asker = Asker(engine, references, family)
        for prompt in prompts[:3]:
            await asker.ask(prompt)
        await engine.flush_l1()
        outputs = await asker.ask(prompts[3])
        assert count_tokens(outputs, "l2") == SHARED, "the second one left a window there"

        await engine.flush()
        outputs = await asker.ask(*prompts)
        assert count_tokens(outputs, "l3") > 3 * SHARED


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
async def test_requests_run_past_many_windows_without_prefix_caching(
    family: Family, references: References
) -> None:
    changes = {**SMALL_POOL, "cache": {"prefix_caching": False}}
    async with in_process_engine(engine_config(references(family).folder, **changes)) as engine:
        await Asker(engine, references, family).ask(*make_prompts(10, [90, 17, 33]))


async def test_what_a_retracted_request_computed_is_taken_up_where_its_window_is(
    references: References,
) -> None:
    family = Family.GEMMA2
    changes = {
        "model": {"max_model_len": 176},
        "cache": {"l1": {"num_pages": 20}},
        "scheduler": {"max_running_requests": 6},
    }
    async with in_process_engine(engine_config(references(family).folder, **changes)) as engine:
        asker = Asker(engine, references, family)
        await asker.ask(*make_prompts(11, [49, 40, 60, 33, 80, 90]))
        assert (await engine.stats())["scheduler"]["retracted_requests"] > 0
