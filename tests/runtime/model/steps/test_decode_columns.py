"""Columns of decodes are made in a way of their own, and are those of every other step."""

import numpy as np
import pytest

from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.steps.decode_columns import PackedColumns
from raydix.runtime.model.steps.step_rows import StepRows, step_columns
from raydix.runtime.model.steps.step_shapes import decode_shapes
from raydix.runtime.model.steps.warm_up import CUTTING, GREEDY
from tests.runtime.model.steps.plan_driver import PlanDriver

MAX_SLOTS = 40


@pytest.fixture
def driver(small_model: LoadedModel) -> PlanDriver:
    return PlanDriver(small_model, max_slots=MAX_SLOTS)


@pytest.mark.parametrize("seed", range(30))
def test_decodes_have_the_columns_of_every_other_step(driver: PlanDriver, seed: int) -> None:
    slots, rng = driver.runner.slots, np.random.default_rng(seed)
    for slot in range(MAX_SLOTS):
        slots.sampling.put(slot, (GREEDY, CUTTING)[rng.integers(2)])
    packed = PackedColumns(slots)
    shapes = decode_shapes(MAX_SLOTS)

    # Twice of each shape: nothing of a step may be left in the padding of the next.
    for _ in range(2 * len(shapes)):
        shape = shapes[rng.integers(len(shapes))]
        count = int(rng.integers(1, shape.num_rows + 1))
        starts = rng.integers(0, slots.max_model_len - 1, count)
        rows = StepRows(
            slots=rng.permutation(MAX_SLOTS)[:count].astype(np.int64),
            starts=starts,
            num_tokens=np.ones(count, dtype=np.int64),
            write_starts=starts + rng.integers(0, 2, count) * (seed % 2),
            output_positions=rng.integers(-(seed % 3 == 0), 100, count),
        )
        sampling = rows.sampling_rows(slots.sampling)

        columns = packed.pack(rows, sampling, shape)

        assert np.array_equal(columns, step_columns(rows, sampling, slots, shape))
