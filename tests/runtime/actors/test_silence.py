"""A client without an engine for long. The silence is that since `test_lives.py`, next to last."""

import signal
import time
from pathlib import Path

import pytest

from tests.runtime.actors.bereaved_client import BereavedClient
from tests.runtime.actors.serve_process import line_of, serving

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SILENCE_S = 90.0
"""Ray's own client library ends a process that has lost its cluster for 60 s."""


def test_a_client_outlives_its_engine_and_reaches_the_next_of_the_name(
    bereaved: BereavedClient, checkpoint: Path
) -> None:
    # Really waited for: it is Ray's clock that must not matter. Most of it has gone by in the tests
    # between the first that needed this client and this one.
    time.sleep(max(0.0, bereaved.killed_s + SILENCE_S - time.monotonic()))
    client = bereaved.process
    assert client.poll() is None

    with serving(checkpoint, bereaved.name) as successor:
        line_of(successor, "is ready")
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
        assert line_of(client, "again") == "again 9\n"
        successor.send_signal(signal.SIGTERM)
        successor.communicate(timeout=60)
        assert successor.returncode == 0
