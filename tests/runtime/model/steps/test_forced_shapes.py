"""No token depends on the captured shape that a step is padded to: each is forced once."""

import numpy as np
import pytest
import torch

from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.steps.step_shapes import large_shapes
from tests.runtime.model.steps.plan_driver import PlanDriver, Row, tokens_of
from tests.runtime.model.steps.uncaptured_steps import without_graphs

PROMPT = np.random.default_rng(5).integers(0, 199, 90).tolist()


def decodes(driver: PlanDriver, num_rows: int) -> list[Row]:
    """Rows of one token, behind contexts of different lengths."""
    requests = [driver.add(slot, PROMPT[slot : slot + 9 + 7 * slot]) for slot in range(num_rows)]
    driver.step([Row(request=each, num_tokens=each.num_prompt_tokens) for each in requests])
    return [Row(request=each, num_tokens=1) for each in requests]


def extension(driver: PlanDriver) -> list[Row]:
    """A few tokens behind a prefix."""
    request = driver.add(0, PROMPT)
    driver.step([Row(request=request, num_tokens=77)])
    return [Row(request=request, num_tokens=13)]


def prompts(driver: PlanDriver) -> list[Row]:
    """A whole prompt, the rest of another, and decodes between them: 30 tokens."""
    singles = decodes(driver, 3)
    rest = driver.add(3, PROMPT)
    driver.step([Row(request=rest, num_tokens=72)])
    whole = driver.add(4, PROMPT[40:49])
    return [Row(request=whole, num_tokens=9), *singles, Row(request=rest, num_tokens=18)]


STEPS = {
    "one decode": lambda driver: decodes(driver, 1),
    "decodes": lambda driver: decodes(driver, 4),
    "extension": extension,
    "prompts": prompts,
}


LARGE = large_shapes(200, 16, 2048)[::6]
"""Some shapes of engines that have many more slots; their rows are mostly padding here."""
NUM_SHAPES = {"one decode": 37, "decodes": 31, "extension": 29, "prompts": 25}
"""The number of shapes that hold them: all but smaller ones, and those of one row or single tokens.
"""


@pytest.mark.parametrize("kind", STEPS)
def test_every_shape_that_holds_a_step_gives_what_its_operations_give(
    small_model: LoadedModel, kind: str
) -> None:
    plain = PlanDriver(small_model)
    expected = tokens_of(plain.step(STEPS[kind](plain)))

    num_forced = 0
    for shape in (*plain.runner.captured_shapes(), *LARGE):
        driver = PlanDriver(small_model)
        rows = STEPS[kind](driver)
        steps = without_graphs(driver.runner)
        steps.shapes = (shape,)
        tokens = tokens_of(driver.step(rows))

        num_forced += len(steps.replayed)
        assert tokens == expected, shape
        torch.testing.assert_close(plain.pool[1:], driver.pool[1:], atol=1e-5, rtol=1e-5)
    assert num_forced == NUM_SHAPES[kind]
