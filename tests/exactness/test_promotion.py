"""Pages from L3 that go on to L1 while others are awaited give the tokens of a cold run."""

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import assert_all_exact, count_tokens, engine_config, make_prompts, run
from tests.exactness.reference import References

NUM_SHARED = 120
PROMPTS = make_prompts(57, [240, 230, 200], num_shared=NUM_SHARED)
NUM_TOKENS = 12
CACHE = {
    "page_size": 2,
    "l1": {"num_pages": 1024, "copy_delay_s": 1e-4},
    "l3": {"backend": "fake", "latency_s": 0.02, "max_bytes_per_s": 150_000},
    "prefetch": {"strategy": "wait_complete"},
}


@pytest.mark.parametrize("family", [Family.QWEN3, Family.GEMMA3, Family.DEEPSEEK_V2])
async def test_parts_loaded_while_others_are_awaited_are_exact(
    family: Family, references: References
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, cache=CACHE, scheduler={"chunked_prefill_tokens": 64})
    async with in_process_engine(config) as engine:
        await run(engine, PROMPTS, 1)
        await engine.settle()
        await engine.flush()

        # L2 holds what they share: its load starts in the turn that asks for the rest, so it is
        # ahead of that however late a busy machine hears of each part.
        await run(engine, [PROMPTS[0][: NUM_SHARED + 1]], 1)
        await engine.settle()
        await engine.flush_l1()
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        num_cached = sum(len(prompt) // 2 * 2 for prompt in PROMPTS) - len(PROMPTS)
        assert count_tokens(outputs, "l2") == NUM_SHARED * len(PROMPTS)
        assert count_tokens(outputs, "l3") == num_cached - NUM_SHARED * len(PROMPTS)
        assert (await engine.stats())["scheduler"]["promoted_pages"] > 0
        await engine.check()
