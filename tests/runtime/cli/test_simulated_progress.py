"""Who waits for a simulation is told now and then how far it is."""

import pytest

from raydix.runtime.cli.simulated_progress import now_and_then
from raydix.runtime.foresight.simulator.simulation import Simulation
from tests.runtime.foresight.simulator.made_services import PROFILE, made_service, made_sessions


def test_people_are_told_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 4.0, 9.9, 10.0, 10.0, 12.0, 20.0, 20.0, 21.0])
    tell = now_and_then(lambda: next(times))
    for number in range(6):
        tell(f"look {number}")
    assert capsys.readouterr().err.splitlines() == ["look 2", "look 4"]


def test_a_simulation_says_how_many_requests_have_ended() -> None:
    told: list[str] = []
    watched = Simulation(made_service(), PROFILE, made_sessions(12, 3)).run(told.append)
    assert told
    assert "of 36 requests have ended, " in told[0]
    assert watched == Simulation(made_service(), PROFILE, made_sessions(12, 3)).run()
