import numpy as np
import pytest

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.steps.rehearsal import rehearse, rehearsed_plans
from raydix.runtime.model.steps.warm_up import GREEDY
from tests.runtime.model.steps.plan_driver import PlanDriver


def test_a_rehearsal_leaves_every_slot_free_and_writes_no_page(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    runner = driver.runner
    before = [pool[1:].clone() for pool in driver.pools]

    rehearse(runner)

    assert not runner.slots.is_taken.any()
    for pool, was in zip(driver.pools, before, strict=True):
        assert pool[1:].equal(was)


def test_a_model_that_keeps_states_is_rehearsed(state_model: LoadedModel) -> None:
    runner = PlanDriver(state_model).runner

    rehearse(runner)

    assert not runner.slots.is_taken.any()


@pytest.mark.parametrize(
    ("max_slots", "max_model_len", "max_prefill_tokens"),
    [(1, 4, 64), (3, 100, 16), (128, 8192, 512), (128, 8192, 8192)],
)
def test_plans_fit_the_engine_and_tell_all_lanes(
    max_slots: int, max_model_len: int, max_prefill_tokens: int
) -> None:
    samplings = (GREEDY, DeviceSampling(seed=0, temperature=1.0))
    plans = list(
        rehearsed_plans(
            samplings,
            max_slots=max_slots,
            max_model_len=max_model_len,
            max_prefill_tokens=max_prefill_tokens,
            num_lanes=2,
        )
    )

    taken: set[int] = set()
    for step, plan in enumerate(plans):
        assert plan.step == step
        taken.difference_update(plan.removed_slots.tolist())
        taken.update(request.slot for request in plan.added)
        assert set(plan.row_slots.tolist()) == taken
        ends = plan.row_starts + plan.row_num_tokens
        assert len(taken) <= max_slots
        assert plan.row_num_tokens.sum() <= max_prefill_tokens
        assert ends.max(initial=0) <= max_model_len
        assert np.array_equal(plan.row_write_starts, ends), "nothing is kept"
        if taken:
            assert plan.group_tokens.tolist() == [int(plan.row_num_tokens.sum())] * 2
    assert not taken
