"""Plans for experts come from another process, as they would in this one."""

import asyncio

import numpy as np
import pytest

from raydix.moe.expert_time import ExpertTime
from raydix.moe.placement import initial_placement
from raydix.runtime.actors import expert_planner
from raydix.runtime.actors.expert_planner import ExpertPlanner
from raydix.runtime.config.policies import Rebalance
from raydix.runtime.scheduler.events import ExpertsPlanned, PlanExperts
from raydix.runtime.scheduler.expert_plans import ExpertFacts, PlanningWanted, plan_experts

WAIT_S = 60
TIME = ExpertTime(
    expert_bytes=1 << 20,
    memory_bytes_per_s=1e12,
    row_flops=1e6,
    flops_per_s=1e12,
    row_bytes=1 << 10,
    link_bytes_per_s=1e11,
)


def _facts(policy: Rebalance = Rebalance.INCREMENTAL) -> ExpertFacts:
    return ExpertFacts(
        policy=policy,
        num_ranks=2,
        spare_per_rank=1,
        time=TIME,
        copy_bytes_per_s=1e10,
        stable_steps=1_000_000,
    )


def _wanted(rows: list[float]) -> PlanExperts:
    current = initial_placement(4, len(rows), 2, spare_seats=1)
    rows_LE = np.tile(np.array(rows), (4, 1))
    wanted = PlanningWanted(number=7, current=current, rows_per_step_LE=rows_LE)
    return PlanExperts(step_group=0, wanted=wanted)


async def _ask(effect: PlanExperts, facts: ExpertFacts) -> ExpertsPlanned:
    answered: asyncio.Queue[ExpertsPlanned] = asyncio.Queue()
    planner = ExpertPlanner(answered.put_nowait)
    planner.start(effect, facts)
    return await asyncio.wait_for(answered.get(), WAIT_S)


@pytest.mark.parametrize("policy", [Rebalance.INCREMENTAL, Rebalance.DEEPSEEK])
async def test_the_answer_is_that_of_this_process(policy: Rebalance) -> None:
    effect, facts = _wanted([900, 800, 700, 600, 5, 5, 5, 5]), _facts(policy)

    planned = await _ask(effect, facts)

    own = plan_experts(effect.wanted.current, effect.wanted.rows_per_step_LE, facts)
    assert (planned.step_group, planned.number) == (0, 7)
    assert planned.plan is not None
    assert planned.plan.placement is not None
    assert own.placement is not None
    assert np.array_equal(planned.plan.placement.experts_LP, own.placement.experts_LP)
    assert planned.plan.num_moves == own.num_moves > 0
    assert planned.plan.imbalance_before == own.imbalance_before > own.imbalance_after


async def test_an_answer_may_be_that_nothing_should_move() -> None:
    planned = await _ask(_wanted([100.0] * 8), _facts())
    assert planned.plan is not None
    assert planned.plan.placement is None


async def test_a_process_that_fails_answers_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_planner, "_PROGRAM", "raise SystemExit('no')")
    planned = await _ask(_wanted([1.0] * 8), _facts())
    assert planned.plan is None
    assert planned.number == 7


async def test_an_answer_that_is_cut_short_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; sys.stdin.buffer.read(); os.write(1, b'PK' + bytes([3, 4, 20]))"
    monkeypatch.setattr(expert_planner, "_PROGRAM", program)
    planned = await _ask(_wanted([1.0] * 8), _facts())
    assert planned.plan is None
    assert planned.number == 7


async def test_who_stops_waits_for_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_planner, "_PROGRAM", "import time; time.sleep(600)")
    answered: asyncio.Queue[ExpertsPlanned] = asyncio.Queue()
    planner = ExpertPlanner(answered.put_nowait)
    planner.start(_wanted([1.0] * 8), _facts())
    await asyncio.sleep(0)

    await asyncio.wait_for(planner.stop(), WAIT_S)

    assert answered.empty()
