"""The benchmark of what is computed past stops counts what it says."""

import asyncio
import json
from dataclasses import replace

import pytest

from benchmarks import late_stops
from benchmarks.throughput import TINY

LOAD = replace(TINY, output_tokens=(4, 800))


def test_a_rank_that_computes_before_it_goes_on_could_know_of_every_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert late_stops.main(((6, 0.5),), LOAD, None) == 0
    [line] = capsys.readouterr().out.splitlines()
    figures = {figure["name"]: figure for figure in json.loads(line)["figures"]}

    past = "6 requests, 0.5 ms, as on the CPU: computed past"
    assert figures[f"{past} a stop that no rank could know"]["value"] == 0
    assert 0 <= figures[f"{past} stops, of all tokens"]["value"] < 0.5
    assert figures["a look for stops among 6 rows"]["value"] > 0


def test_answers_end_by_stops_and_tokens_past_them_are_nobodys() -> None:
    counted = asyncio.run(late_stops.measure(LOAD, 6, 0.005, is_enqueued=True))

    assert 0 < counted.num_stops <= 6
    # A step is enqueued behind the one with the stop, which has not ended then.
    assert counted.num_unaware > 0
    assert counted.num_tokens <= 6 * 800
