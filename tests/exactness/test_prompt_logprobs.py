"""Logprobs of prompts are those of transformers, whatever is cached of them and however they are
cut, and such requests say that they took nothing from a cache.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.checkpoints import LOGITS_TOLERANCE
from tests.exactness.engines import (
    CACHING_KINDS,
    PAGE_SIZE,
    assert_all_exact,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import GREEDY, Prompt, Reference, References
from tests.exactness.states import State, reach
from tests.runtime.model.steps.uncaptured_steps import UncapturedSteps, without_graphs
from tests.runtime.testing.rank_groups import Groups

PROMPTS = make_prompts(21, [1, 2, 16, 49, 130], num_shared=10)
"""Chunks of three pages cut the last two."""
NUM_TOKENS = 10
LONG = 60
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
    """Check that they took nothing from a cache and say why."""
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


@pytest.mark.part
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


@pytest.mark.part
@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("chunk", [PAGE_SIZE, 2 * PAGE_SIZE, None])
async def test_scores_do_not_depend_on_chunks(
    family: Family, chunk: int | None, references: References
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, scheduler={"chunked_prefill_tokens": chunk})
    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        await assert_all_scored(engine, reference, PROMPTS, NUM_TOKENS)
        await engine.check()


@pytest.mark.parametrize("family", [Family.QWEN3, Family.GPT_OSS, Family.DEEPSEEK_V3])
async def test_retracted_requests_keep_the_scores_of_their_prompts(
    family: Family, references: References
) -> None:
    """An L1 that any two of them outgrow as they generate."""
    reference = references(family)
    config = engine_config(
        reference.folder, cache={"l1": {"num_pages": 17, "tokens_per_window": PAGE_SIZE}}
    )
    prompts = make_prompts(22, [100, 37, 64, 81] * 2, num_shared=2 * PAGE_SIZE)
    async with in_process_engine(config) as engine:
        outputs = await run(engine, prompts, LONG, SCORED)
        await assert_all_exact(engine, reference.expect(prompts), outputs)
        assert_uncached(outputs)
        for output in outputs:
            assert_scored(reference, output)
        stats = await engine.check()
    assert stats["scheduler"]["retracted_requests"] > 0


async def test_without_prefix_caching_prompts_are_scored_all_the_same(
    references: References,
) -> None:
    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, cache={"prefix_caching": False})
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS, SCORED)
        await engine.check()
    for output in outputs:
        assert_scored(reference, output)
        assert output.metrics.cached_tokens_by_source == {
            "computed:caching_off": len(output.prompt_token_ids)
        }


@pytest.mark.part
@pytest.mark.parametrize("family", [Family.QWEN3_MOE, Family.DEEPSEEK_V3, Family.QWEN3_NEXT])
@pytest.mark.parametrize("places", [{"dp": 2, "ep": 2}, {"tp": 2, "ep": 2}], ids=str)
@pytest.mark.parametrize("is_halved", [False, True])
async def test_ranks_that_share_experts_score_what_one_does(
    family: Family, places: dict[str, int], is_halved: bool, references: References
) -> None:
    """The steps are of two halves, where they can be, or those that graphs would hold."""
    reference = references(family)
    overlap = "on" if is_halved else "off"
    config = engine_config(reference.folder, parallel=places, experts={"overlap": overlap})
    steps: list[UncapturedSteps] = []

    def build(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        return _with_fixed_shapes(build_torch_model(config, place), steps)

    async with in_process_engine(config, build_torch_model if is_halved else build) as engine:
        await reach(engine, config, State.L1, PROMPTS)
        await assert_all_scored(engine, reference, PROMPTS, NUM_TOKENS)
        await engine.check()
    assert is_halved or len(steps[0].replayed) >= NUM_TOKENS


def _with_fixed_shapes(loaded: LoadedGpuModel, steps: list[UncapturedSteps]) -> LoadedGpuModel:
    def prepare(num_pages: tuple[int, ...]) -> GpuModel:
        model = loaded.prepare(num_pages)
        assert isinstance(model.runner, ModelRunner)
        steps.append(without_graphs(model.runner))
        return model

    return replace(loaded, prepare=prepare)


@pytest.mark.parametrize("num_pages", [1, 5, 12])
async def test_a_lost_rank_costs_no_score(num_pages: int, references: References) -> None:
    """Chunks of a page: it is lost in the middle of the prompts."""
    reference = references(Family.QWEN3_MOE)
    config = engine_config(
        reference.folder,
        parallel={"dp": 2, "ep": 2},
        scheduler={"chunked_prefill_tokens": PAGE_SIZE},
    )
    prompts = make_prompts(23, [200, 180])
    groups = Groups(config, build_torch_model)
    async with groups.engine() as engine:
        streams = asyncio.create_task(run(engine, prompts, NUM_TOKENS, SCORED))
        while (await engine.stats())["scheduler"]["l1_cached_pages"] < num_pages:
            await asyncio.sleep(0)
        groups.spawner.ranks[0, 1].kill()
        async with asyncio.timeout(60):
            outputs = await streams
            await groups.supervisor.wait_all_serving()
        await engine.check()

    assert_uncached(outputs)
    for output in outputs:
        assert_scored(reference, output)
