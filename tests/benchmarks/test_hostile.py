import pytest

pytest.importorskip("xgrammar")

from benchmarks.hostile import Round, quotients


def test_a_machine_that_grows_slower_is_no_cost_of_hostile_grammars() -> None:
    quiet = [Round(tpot_s=each, cpu_s=2 * each) for each in (1.0, 3.0, 5.0)]
    hostile = [Round(tpot_s=2.0, cpu_s=6.0), Round(tpot_s=6.0, cpu_s=8.0)]

    assert quotients(quiet, hostile, lambda each: each.tpot_s) == [1.0, 1.5]
    assert quotients(quiet, hostile, lambda each: each.cpu_s) == [1.5, 1.0]
