"""What hand-overs have taken is believed of the next ones, on each way apart, and not for ever."""

import pytest

from raydix.ids import NodeId, RequestId
from raydix.runtime.routing.hand_over_times import HandOverTimes, Way

WAY, OTHER = Way(NodeId(0), NodeId(1)), Way(NodeId(0), NodeId(2))
FIRST, REST = RequestId("first"), RequestId("rest")


def hand_over(times: HandOverTimes, foreseen_s: float, took_s: float, at_s: float = 0.0) -> None:
    times.begin(FIRST, WAY, foreseen_s, at_s)
    times.go_on(FIRST, WAY.then, REST)
    assert times.end(REST, at_s + took_s) == pytest.approx(took_s)


def taught(took_s: float, foreseen_s: float = 0.02, num: int = 8) -> HandOverTimes:
    times = HandOverTimes()
    for number in range(num):
        hand_over(times, foreseen_s, took_s, at_s=number)
    return times


def test_at_first_all_takes_as_long_as_foreseen() -> None:
    assert HandOverTimes().predict_s(WAY, 0.3, 0.0) == 0.3


@pytest.mark.parametrize("took_s", [0.2, 0.005])
def test_what_they_took_is_believed_of_the_next_one(took_s: float) -> None:
    assert taught(took_s).predict_s(WAY, 0.02, 8.0) == pytest.approx(took_s, rel=0.1)


def test_another_way_is_believed_to_be_as_foreseen() -> None:
    assert taught(0.2).predict_s(OTHER, 0.02, 8.0) == 0.02


def test_a_fixed_time_is_told_from_one_that_grows() -> None:
    times = HandOverTimes()
    for number in range(20):
        foreseen_s = 0.01 * (1 + number % 5)
        hand_over(times, foreseen_s, 0.1 + 2 * foreseen_s, at_s=number)
    assert times.predict_s(WAY, 0.03, 20.0) == pytest.approx(0.16, rel=0.1)
    assert times.predict_s(WAY, 0.1, 20.0) == pytest.approx(0.3, rel=0.1)


def test_what_nobody_has_refuted_for_long_is_forgotten() -> None:
    times = taught(2.0)
    assert times.predict_s(WAY, 0.02, 30.0) > 1.0
    assert times.predict_s(WAY, 0.02, 400.0) < 0.1


def test_what_goes_on_elsewhere_than_foreseen_teaches_nothing() -> None:
    times = HandOverTimes()
    times.begin(FIRST, WAY, 0.02, 0.0)
    times.go_on(FIRST, OTHER.then, REST)
    assert times.end(REST, 5.0) is None
    assert not times.num_open


def drop(times: HandOverTimes, waited_s: float, at_s: float = 0.0) -> None:
    """A hand-over ends before its second token."""
    times.begin(FIRST, WAY, 0.02, at_s)
    times.go_on(FIRST, WAY.then, REST)
    times.drop(REST, at_s + waited_s)
    assert times.end(REST, at_s + 5.0) is None
    assert not times.num_open


def test_hand_overs_that_nobody_waits_out_take_longer_than_these_waited() -> None:
    times = HandOverTimes()
    for number in range(3):
        assert times.predict_s(WAY, 0.02, number) < 2.0, "the third one is believed"
        drop(times, 2.0, at_s=number)
    assert times.predict_s(WAY, 0.02, 4.0) > 2.0
    assert times.predict_s(WAY, 0.02, 400.0) < 0.1, "it fades"

    hand_over(times, 0.02, 0.03, at_s=5.0)
    assert times.predict_s(WAY, 0.02, 6.0) < 0.1, "one quick one refutes it"


def test_what_ends_at_once_says_nothing_of_hand_overs() -> None:
    times = HandOverTimes()
    for number in range(4):
        drop(times, 0.001, at_s=number)
    assert times.predict_s(WAY, 0.02, 4.0) == pytest.approx(0.02)


@pytest.mark.parametrize("node", [WAY.first, WAY.then])
def test_a_node_that_is_gone_takes_what_was_learnt_of_it_along(node: NodeId) -> None:
    times = taught(2.0)
    times.begin(FIRST, WAY, 0.02, 9.0)
    times.begin(RequestId("second"), WAY, 0.02, 9.0)
    times.go_on(RequestId("second"), WAY.then, REST)
    times.forget(node)
    assert times.predict_s(WAY, 0.02, 9.0) == 0.02
    assert not times.num_open


def test_the_second_token_alone_is_the_end_and_only_of_what_goes_on() -> None:
    times = HandOverTimes()
    times.begin(FIRST, WAY, 0.02, 0.0)
    assert times.end(FIRST, 1.0) is None, "it has not gone on"
    times.go_on(FIRST, WAY.then, REST)
    assert times.end(REST, 1.0) == 1.0
    assert times.end(REST, 2.0) is None
