"""Nodes where starts fail rest."""

from raydix.runtime.actors.service.rests import Rests


def test_each_failure_in_a_row_doubles_the_rest_up_to_a_minute() -> None:
    rests = Rests()
    lengths = []
    for _ in range(9):
        rests.note_failure("a", "no room", 0.0)
        lengths.append(next(s for s in range(100) if "a" not in rests.resting(float(s))))
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert rests.resting(0.0) == {"a": "no room"}


def test_a_node_may_fail_for_days() -> None:
    rests = Rests()
    for _ in range(3000):
        rests.note_failure("a", "no room", 0.0)
    assert rests.resting(59.0) == {"a": "no room"}
    assert rests.resting(60.0) == {}


def test_a_node_whose_engine_serves_starts_anew() -> None:
    rests = Rests()
    rests.note_failure("a", "no room", 0.0)
    rests.note_failure("a", "no room", 0.0)
    rests.note_success("a")
    assert rests.resting(0.0) == {}
    rests.note_failure("a", "no room", 10.0)
    assert rests.resting(10.9) == {"a": "no room"}
    assert rests.resting(11.0) == {}
