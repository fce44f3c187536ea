import logging
import re

import pytest

from raydix.runtime.phases import PROGRESS_S, ReadProgress, phase

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
    assert re.fullmatch(r"weights read in \d+\.\d s", message)


def test_progress_is_told_now_and_then_and_summed_up_at_the_end() -> None:
    progress = ReadProgress("weights", 8 * MIB, began_s=100.0)
    assert progress.advance(MIB, 100.0 + PROGRESS_S / 2) is None
    assert progress.advance(MIB, 100.0 + PROGRESS_S) == "weights: 2MiB of 8MiB so far"
    assert progress.advance(MIB, 101.0 + PROGRESS_S) is None
    assert progress.advance(5 * MIB, 100.0 + 2 * PROGRESS_S) == "weights: 8MiB of 8MiB so far"
    assert progress.summary(100.0 + 16.0) == "weights: 8MiB in 16.0 s, 512KiB/s"
