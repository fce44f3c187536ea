import logging
import re

import pytest

from raydix.runtime.phases import (
    PROGRESS_S,
    TOOK_S,
    Phase,
    ReadProgress,
    aside,
    critical_path,
    path_text,
    phase,
)

MIB = 1 << 20


def test_a_phase_tells_its_seconds_once_it_has_ended_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with phase(logging.getLogger("raydix.x"), "weights read"):
        pass
    with pytest.raises(ValueError), phase(logging.getLogger("raydix.x"), "graphs captured"):
        raise ValueError
    (message,) = caplog.messages
    assert re.fullmatch(r"weights read in \d+\.\d\d s", message)


def test_progress_is_told_now_and_then_and_summed_up_at_the_end() -> None:
    progress = ReadProgress("weights", 8 * MIB, began_s=100.0)
    assert progress.advance(MIB, 100.0 + PROGRESS_S / 2) is None
    assert progress.advance(MIB, 100.0 + PROGRESS_S) == "weights: 2MiB of 8MiB so far"
    assert progress.advance(MIB, 101.0 + PROGRESS_S) is None
    assert progress.advance(5 * MIB, 100.0 + 2 * PROGRESS_S) == "weights: 8MiB of 8MiB so far"
    assert progress.summary(100.0 + 16.0) == "weights: 8MiB in 16.0 s, 512KiB/s"


def test_a_phase_beside_the_start_is_told_and_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with aside(logging.getLogger("raydix.x"), "arena registered"):
        pass
    (record,) = caplog.records
    assert not hasattr(record, TOOK_S)


def of(actor: str, what: str, began_s: float, ended_s: float) -> Phase:
    return Phase(actor=actor, what=what, began_s=began_s, ended_s=ended_s)


def test_a_start_waited_for_what_ended_last_before_each_next_part() -> None:
    torch, weights = of("gpu0", "torch", 1.0, 4.0), of("gpu0", "weights", 4.0, 6.0)
    arena, graphs = of("host", "arena", 2.0, 9.0), of("gpu0", "graphs", 9.0, 12.0)
    short = of("scheduler", "process", 1.0, 2.0)

    path = critical_path([torch, short, weights, arena, graphs], began_s=0.0, ended_s=13.0)

    # Graphs waited for the arena, that for the scheduler's process; torch and weights had time.
    assert [(step.phase, step.seconds) for step in path] == [
        (None, 1.0),
        (short, 1.0),
        (arena, 7.0),
        (graphs, 3.0),
        (None, 1.0),
    ]


def test_a_path_adds_up_to_the_whole_start() -> None:
    phases = [of("a", "x", -1.0, 3.02), of("b", "y", 3.05, 5.0), of("c", "late", 4.0, 9.0)]

    path = critical_path(phases, began_s=0.0, ended_s=5.0)

    assert sum(step.seconds for step in path) == pytest.approx(5.0)
    assert [step.phase and step.phase.what for step in path] == ["x", "y"]
    assert path_text(path) == "5.00 s: 3.05 s a: x; 1.95 s b: y"


def test_a_start_without_phases_is_one_pause() -> None:
    assert path_text(critical_path([], 0.0, 2.0)) == "2.00 s: 2.00 s between phases"
