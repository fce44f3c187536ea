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


def test_nodes_that_come_and_go_for_ever_leave_nothing_behind() -> None:
    rests = Rests()
    for hour in range(1000):
        now_s = 3600.0 * hour
        rests.note_failure(f"node-{hour}", "no room", now_s)
        rests.note_there(["other"], now_s)
        assert len(rests.nodes) == 1


def test_a_node_that_is_back_goes_on_where_it_was() -> None:
    rests = Rests()
    for _ in range(5):
        rests.note_failure("a", "no room", 0.0)
    # It rests for 16 s; a start that takes an hour fails again.
    rests.note_there([], 300.0)
    rests.note_there(["a"], 3600.0)
    rests.note_failure("a", "no room", 3600.0)
    assert rests.resting(3631.0) == {"a": "no room"}
    assert rests.resting(3632.0) == {}
