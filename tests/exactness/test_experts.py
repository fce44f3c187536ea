"""Experts that are divided among ranks answer as the whole model does, whoever has them."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.protocol import ALL_FORMS
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_output import StepOutput
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.tiers.transfers import WaitLayer
from tests.checkpoints import make_checkpoint
from tests.exactness.engines import (
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import Reference, References
from tests.exactness.states import State, reach
from tests.runtime.model.steps.uncaptured_steps import UncapturedSteps, without_graphs
from tests.runtime.testing.rank_groups import Groups

FAMILIES = [
    Family.QWEN3_MOE,
    Family.GPT_OSS,
    Family.DEEPSEEK_V3,
    Family.GEMMA4,
    Family.GLM4_MOE,
    Family.MINIMAX_M2,
    Family.QWEN2_MOE,
    Family.MIMO_V2_FLASH,
]
PLACES = [{"dp": 2, "ep": 2}, {"tp": 2, "ep": 2}]
FOUR_RANKS = {"dp": 2, "tp": 2, "ep": 4}
NUM_TOKENS = 16
LONG = 60
WAIT_S = 60
PROMPTS = make_prompts(61, [100, 70, 3, 49, 1])
SHORT_PROMPTS = make_prompts(62, [7] * 12)
Places = Mapping[str, int]


class Ranks:
    """Builds models as GPU actors do, and keeps what tests look into."""

    def __init__(self, on_runner: Callable[[ModelRunner], None] = lambda runner: None) -> None:
        self.runners: dict[int, ModelRunner] = {}
        self._on_runner = on_runner

    def build(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        loaded = build_torch_model(config, place)

        def prepare(num_pages: tuple[int, ...]) -> GpuModel:
            model = loaded.prepare(num_pages)
            assert isinstance(model.runner, ModelRunner)
            self.runners[place.rank] = model.runner
            self._on_runner(model.runner)
            return model

        return replace(loaded, prepare=prepare)


def place_id(places: Any) -> str:
    return "-".join(f"{name}{size}" for name, size in places.items())


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("places", PLACES, ids=place_id)
async def test_tokens_are_those_of_the_whole_model(
    family: Family, places: Places, references: References
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, parallel=places)
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        await engine.check()


async def test_tokens_are_those_of_the_whole_model_on_lanes_of_several_ranks(
    references: References,
) -> None:
    reference = references(Family.QWEN3_MOE)
    config = engine_config(reference.folder, parallel=FOUR_RANKS)
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("places", PLACES, ids=place_id)
async def test_prefixes_come_back_from_the_arena(
    family: Family, places: Places, references: References
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, parallel=places)
    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        assert count_tokens(outputs, "l2") == sum(map(cacheable_tokens, PROMPTS))
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_rank_without_requests_serves_its_experts(
    family: Family, references: References
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, parallel={"dp": 2, "ep": 2})
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS[:1], NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS[:1]), outputs)
        stats = await engine.check()
        assert min(stats[rank]["compute_s"] for rank in ("gpu0", "gpu1")) > 0.0


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("places", [*PLACES, FOUR_RANKS], ids=place_id)
async def test_steps_in_two_halves_give_the_same_tokens(
    family: Family, places: Places, references: References
) -> None:
    """Prompts that are computed in chunks, decodes, and what has come back from the arena."""
    reference = references(family)
    config = engine_config(reference.folder, parallel=places, experts={"overlap": "on"})
    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        assert count_tokens(outputs, "l2") == sum(map(cacheable_tokens, PROMPTS))
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        stats = await engine.check()
        halved = {figures["num_halved_steps"] for name, figures in stats.items() if "gpu" in name}
        assert len(halved) == 1, "all ranks halve the same steps"
        assert min(halved) > len(PROMPTS)


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
async def test_an_idle_rank_takes_part_in_both_halves(
    family: Family, references: References
) -> None:
    reference = references(family)
    parallel = {"dp": 2, "ep": 2}
    config = engine_config(reference.folder, parallel=parallel, experts={"overlap": "on"})
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS[:1], NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS[:1]), outputs)
        stats = await engine.check()
        assert min(stats[rank]["num_halved_steps"] for rank in ("gpu0", "gpu1")) > 0


@pytest.mark.parametrize("overlap", ["auto", "off"])
async def test_steps_stay_whole_on_the_cpu_unless_told_otherwise(
    overlap: str, references: References
) -> None:
    reference = references(Family.QWEN3_MOE)
    parallel = {"dp": 2, "ep": 2}
    config = engine_config(reference.folder, parallel=parallel, experts={"overlap": overlap})
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        stats = await engine.check()
        assert max(stats[rank]["num_halved_steps"] for rank in ("gpu0", "gpu1")) == 0


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("places", [*PLACES, FOUR_RANKS], ids=place_id)
async def test_steps_of_fixed_shapes_give_the_same_tokens(
    family: Family, places: Places, references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What graphs hold, padding that goes to no expert included.

    Every rank replays the same small steps, and prompts unless its latents pay to expand.
    """
    # Nothing is in graphs, so it will do.
    monkeypatch.setattr(GlooDispatcher, "captured_forms", ALL_FORMS)
    reference = references(family)
    steps: list[UncapturedSteps] = []
    ranks = Ranks(lambda runner: steps.append(without_graphs(runner)))
    config = engine_config(reference.folder, parallel=places)
    async with in_process_engine(config, ranks.build) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        # Some of these are in one step, which is as small as a captured one.
        short_outputs = await run(engine, SHORT_PROMPTS, NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        await assert_all_exact(engine, reference.expect(SHORT_PROMPTS), short_outputs)
        small, *others = [
            [shape for shape in each.replayed if not shape.num_prompt_tiles] for each in steps
        ]
        assert len(steps[0].replayed) >= NUM_TOKENS - 1
        assert all(each == small for each in others)
        has_latents = family is Family.DEEPSEEK_V3
        assert has_latents or all(len(each.replayed) > len(small) for each in steps)
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "bias", "expert"),
    [
        (Family.GPT_OSS, "router.bias", 3),
        (Family.DEEPSEEK_V3, "gate.e_score_correction_bias", 7),
    ],
)
@pytest.mark.parametrize("places", [*PLACES, FOUR_RANKS], ids=place_id)
async def test_all_tokens_may_go_to_one_expert(
    family: Family, bias: str, expert: int, places: Places, tmp_path: Path
) -> None:
    overrides = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 1}
    make_checkpoint(tmp_path, family, seed=5, num_hidden_layers=2, **overrides)
    weights = load_file(tmp_path / "model.safetensors")
    for name in (each for each in weights if each.endswith(bias)):
        weights[name] = torch.zeros_like(weights[name])
        weights[name][expert] = 1e4
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    reference = Reference(tmp_path)
    ranks = Ranks()
    async with in_process_engine(engine_config(tmp_path, parallel=places), ranks.build) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("places", [*PLACES, FOUR_RANKS], ids=place_id)
async def test_ranks_may_take_any_copies_of_experts_in_any_step(
    family: Family, places: Places, references: References
) -> None:
    """Routes of several versions at once: each rank draws its own before each step."""
    reference = references(family)
    ranks = Ranks(take_random_copies)
    config = engine_config(reference.folder, parallel=places, experts={"redundant_per_rank": 2})
    async with in_process_engine(config, ranks.build) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        await engine.check()


def take_random_copies(runner: ModelRunner) -> None:
    """Send rows to one copy or the other of each expert, by chance, from the next step on."""
    experts, execute = runner._decoder.experts, runner.execute
    assert experts is not None
    rng, placement = random.Random(experts.ranks.rank), experts.placement
    assert placement.num_replicas_LE.max() > 1

    def execute_elsewhere(plan: StepPlan, wait_layer: WaitLayer) -> StepOutput:
        experts.routes.counts_LE.fill_(2)
        for layer in range(placement.num_layers):
            for expert in range(placement.num_experts):
                copies = rng.choices(placement.replicas(layer, expert), k=2)
                experts.routes.table_LER[layer, expert, :2] = torch.tensor(copies)
        return execute(plan, wait_layer)

    runner.execute = execute_elsewhere  # type: ignore[method-assign]


@pytest.mark.part
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
async def test_requests_go_on_with_the_same_tokens_when_a_rank_is_lost(
    family: Family, lost: int, references: References
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, parallel={"dp": 2, "ep": 2})
    groups = Groups(config, build_torch_model)
    async with groups.engine() as engine:
        streams = asyncio.create_task(run(engine, PROMPTS[:4], LONG))
        while (await engine.stats())["scheduler"].get("generation_tokens", 0) < LONG:
            await asyncio.sleep(0.001)

        groups.spawner.ranks[lost, 1].kill()
        async with asyncio.timeout(WAIT_S):
            outputs = await streams
            await groups.supervisor.wait_all_serving()

        await assert_all_exact(engine, reference.expect(PROMPTS[:4]), outputs)
        assert await groups.incarnations() == [2, 2]
        await engine.check()


async def test_pages_serve_engines_with_and_without_divided_experts(
    references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3_MOE)
    for number, places in enumerate([{"dp": 2, "ep": 2}, {"tp": 2}, {"tp": 2, "ep": 2}]):
        config = engine_config(reference.folder, tmp_path, parallel=places)
        async with in_process_engine(config) as engine:
            outputs = await run(engine, PROMPTS, NUM_TOKENS)

            expected = sum(map(cacheable_tokens, PROMPTS)) if number else 0
            assert count_tokens(outputs, "l3") == expected
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
            await engine.check()


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rank", [0, 1])
async def test_comparison_fails_if_two_experts_are_swapped_in_one_ranks_routes(
    family: Family, rank: int, references: References
) -> None:
    reference = references(family)
    ranks = Ranks()
    config = engine_config(reference.folder, parallel={"tp": 2, "ep": 2})
    async with in_process_engine(config, ranks.build) as engine:
        experts = ranks.runners[rank]._decoder.experts
        assert experts is not None
        table_ER = experts.routes.table_LER[-1]
        table_ER[[1, 2]] = table_ER[[2, 1]]

        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
