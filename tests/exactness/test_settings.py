"""Settings and options that change what is cached, never the tokens."""

from pathlib import Path

import pytest

from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import References
from tests.exactness.states import State, reach

PROMPTS = make_prompts(41, [100, 37, 80])
NUM_TOKENS = 24
NUM_CACHEABLE = sum(cacheable_tokens(prompt) for prompt in PROMPTS)
NUM_IN_FULL_PAGES = sum(len(prompt) // PAGE_SIZE * PAGE_SIZE for prompt in PROMPTS)
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 1234}


@pytest.mark.parametrize("family", [Family.QWEN2, Family.MISTRAL, Family.GPT_OSS])
async def test_without_prefix_caching_nothing_is_kept(
    family: Family, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, tmp_path, cache={"prefix_caching": False})

    async with in_process_engine(config) as engine:
        for _ in range(2):
            outputs = await run(engine, PROMPTS, NUM_TOKENS)
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
            assert count_tokens(outputs, "computed:caching_off") == sum(map(len, PROMPTS))
        stats = await engine.check()

    assert stats["scheduler"]["l1_cached_pages"] == 0
    assert not list(tmp_path.glob("*/*/*.page"))


async def test_salts_keep_prefixes_apart(references: References) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)

    async with in_process_engine(engine_config(reference.folder)) as engine:
        found = []
        for salt in ("a", "b", "a", None):
            outputs = await run(
                engine, PROMPTS, NUM_TOKENS, options=RequestOptions(cache_salt=salt)
            )
            await assert_all_exact(engine, expected, outputs)
            found.append(sum(output.num_cached_tokens for output in outputs))
            await engine.settle()
        await engine.check()

    assert found == [0, 0, NUM_CACHEABLE, 0]


@pytest.mark.parametrize("load", ["always", "never", "auto"])
async def test_loading_and_computing_give_the_same_tokens(
    load: str, references: References
) -> None:
    reference = references(Family.MIXTRAL)
    config = engine_config(reference.folder, cache={"load": load})

    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        await engine.check()

    loaded, computed = (
        count_tokens(outputs, "l2"),
        count_tokens(outputs, "computed:recompute_cheaper"),
    )
    if load == "always":
        assert (loaded, computed) == (NUM_CACHEABLE, 0)
    elif load == "never":
        assert (loaded, computed) == (0, NUM_IN_FULL_PAGES)
    else:
        assert loaded > 0 or computed > 0


async def test_a_seed_gives_the_same_sample_in_every_state(
    references: References, tmp_path: Path
) -> None:
    reference = references(Family.LLAMA)
    config = engine_config(reference.folder, tmp_path)
    samples = []

    for state in (State.COLD, State.L1, State.L2, State.L3):
        async with in_process_engine(config) as engine:
            await engine.flush(l3=True)
            await reach(engine, config, state, PROMPTS)
            outputs = await run(engine, PROMPTS, NUM_TOKENS, SAMPLED)
            samples.append([output.outputs[0].token_ids for output in outputs])
            assert state is State.COLD or count_tokens(outputs, state.value) == NUM_CACHEABLE
            await engine.check()

    greedy = [expected.token_ids[:NUM_TOKENS] for expected in reference.expect(PROMPTS)]
    assert all(sample == samples[0] for sample in samples)
    assert samples[0] != greedy


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "eviction"),
    [
        *((Family.LLAMA, eviction) for eviction in EvictionPolicy),
        (Family.GEMMA2, EvictionPolicy.LRU),
        (Family.GPT_OSS, EvictionPolicy.SLRU),
        (Family.DEEPSEEK_V2, EvictionPolicy.LRU),
    ],
)
async def test_tokens_do_not_depend_on_what_is_evicted(
    family: Family, eviction: EvictionPolicy, references: References
) -> None:
    """Conversations of two turns in an L1 and an L2 that hold less than half of them."""
    reference = references(family)
    config = engine_config(
        reference.folder,
        cache={"eviction": eviction, "l1": {"num_pages": 20}, "l2": {"bytes_per_node": "128KiB"}},
    )
    turns = make_prompts(43, [60] * 8, num_shared=PAGE_SIZE)

    async with in_process_engine(config) as engine:
        for prompts in (turns, [(*turn, *turn[::-1]) for turn in turns]):
            outputs = await run(engine, prompts, 16)
            await assert_all_exact(engine, reference.expect(prompts), outputs)
        stats = await engine.check()

    assert stats["scheduler"]["evicted_pages"] > 0
    assert stats["host"]["pages_dropped"] > 0
