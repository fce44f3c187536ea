"""A report is worth telling when it differs from what its reader believes."""

from dataclasses import replace

from raydix.runtime.messages.line import Line
from raydix.runtime.messages.routing import NodeReport
from raydix.runtime.scheduler.load_report import INTERVAL_S, is_worth_telling

TOLD = NodeReport(
    num_seen=0,
    busy_s=0.5,
    num_requests=3,
    arrivals_per_s=1.0,
    busy_fraction=0.5,
    num_ingresses=1,
    prefill=Line(0.01, 0.001),
    load=Line(0.001, 0.0001),
    pull=None,
    page_size=16,
    interval_s=INTERVAL_S,
)


def test_work_that_goes_on_as_foreseen_is_no_news() -> None:
    assert not is_worth_telling(TOLD, replace(TOLD, busy_s=0.2, num_requests=1), 0.3)
    assert not is_worth_telling(TOLD, replace(TOLD, busy_s=0.0), 0.6)


def test_work_that_came_or_did_not_go_is() -> None:
    assert is_worth_telling(TOLD, replace(TOLD, busy_s=0.5), 0.3)
    assert is_worth_telling(TOLD, replace(TOLD, busy_s=0.0), 0.1)
    assert not is_worth_telling(TOLD, replace(TOLD, busy_s=0.45), 0.01)


def test_slots_that_are_taken_or_come_free_are() -> None:
    full = replace(TOLD, num_free_slots=-4, slot_s=0.2)
    assert is_worth_telling(TOLD, full, 0.0)
    assert is_worth_telling(full, TOLD, 0.0)
    assert not is_worth_telling(full, replace(full, busy_s=0.3, num_free_slots=-3), 0.2)


def test_rates_that_have_changed_are() -> None:
    assert is_worth_telling(TOLD, replace(TOLD, prefill=Line(0.01, 0.002)), 0.0)
    assert is_worth_telling(TOLD, replace(TOLD, load=Line(0.1, 0.0001)), 0.0)
    assert not is_worth_telling(TOLD, replace(TOLD, prefill=Line(0.02, 0.00101)), 0.0)
    pulls = replace(TOLD, pull=Line(0.001, 0.001))
    assert is_worth_telling(TOLD, pulls, 0.0)
    assert is_worth_telling(pulls, replace(pulls, pull=Line(0.001, 0.01)), 0.0)
    assert not is_worth_telling(pulls, pulls, 0.0)


def test_an_engine_that_falls_asleep_or_wakes_is() -> None:
    asleep = replace(TOLD, is_asleep=True)
    assert is_worth_telling(TOLD, asleep, 0.0)
    assert is_worth_telling(asleep, TOLD, 0.0)
    assert not is_worth_telling(asleep, asleep, 0.0)


def test_an_l2_that_is_lost_or_there_again_is() -> None:
    shared = replace(TOLD, l2="node-1")
    assert is_worth_telling(shared, TOLD, 0.0)
    assert is_worth_telling(TOLD, shared, 0.0)
    assert not is_worth_telling(shared, shared, 0.0)


def test_after_a_while_anything_is() -> None:
    assert is_worth_telling(TOLD, replace(TOLD, busy_s=0.0), INTERVAL_S)
