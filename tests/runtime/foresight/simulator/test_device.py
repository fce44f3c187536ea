"""When a step ends that waits for loads, layer by layer."""

import pytest

from raydix.runtime.foresight.simulator.device import Load, end_s


def test_a_step_hides_in_a_long_load_all_but_its_last_layer() -> None:
    assert end_s(1.0, 0.5, [Load(0.0, 4.0)], 10) == pytest.approx(4.05)


def test_a_load_hides_in_a_long_step_all_but_its_first_layer() -> None:
    assert end_s(1.0, 5.0, [Load(0.5, 2.5)], 10) == pytest.approx(6.0)
    assert end_s(1.0, 5.0, [Load(1.0, 3.0)], 10) == pytest.approx(6.2)


def test_a_step_waits_for_the_last_of_its_loads() -> None:
    assert end_s(0.0, 1.0, [Load(0.0, 1.0), Load(1.0, 5.0)], 4) == pytest.approx(5.25)
    assert end_s(2.0, 1.0, [], 4) == pytest.approx(3.0)
