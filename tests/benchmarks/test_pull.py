"""Pulls beside plain sockets: what is measured is moved, at any speed."""

import asyncio
import shutil
import sys

import pytest

from benchmarks import pull_engines
from benchmarks.engine.pull_cpu import CpuRound, Requests, cpu_figures, measure_cpu
from benchmarks.pull import figures, measure
from benchmarks.rivals.moved_bytes import Round, Setting
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster

_TINY = Setting(page_bytes=64 << 10, arena_bytes=4 << 20, num_streams=2, rounds=1, round_s=0.05)


def test_every_way_moves_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    rounds = asyncio.run(measure(_TINY))

    assert rounds["iperf3"] == []
    for name in ("pull", "pull here", "plain"):
        [moved] = rounds[name]
        assert moved.num_bytes > 0
        assert moved.seconds >= _TINY.round_s
        assert moved.cpu_s > 0


def test_ratios_are_taken_round_by_round() -> None:
    fast, slow = Round(4 * 10**9, 1.0, 2.0), Round(2 * 10**9, 1.0, 2.0)

    made = figures(
        {
            "pull": [fast, slow, slow],
            "pull here": [slow, fast, fast],
            "plain": [fast, slow, fast],
            "iperf3": [],
        }
    )

    by_name = {figure.name: figure.value for figure in made}
    assert by_name["pull of plain"] == 1.0
    assert by_name["pull within a host of pull by TCP"] == 2.0
    assert by_name["pull throughput"] == 2.0
    assert by_name["plain cpu per GB"] == 0.5
    assert "pull of iperf3" not in by_name


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_schedulers_are_asked_for_what_is_pulled_found_and_computed(
    ray_cluster: PrivateCluster,
) -> None:
    requests = Requests(num_contexts=6, context_tokens=256, rounds=1)

    # Each context must come from where it is meant to, or it raises.
    [measured] = asyncio.run(measure_cpu(requests))

    assert min(measured.pulled, measured.found, measured.computed) > 0


def test_the_bar_of_schedulers_is_for_what_would_be_computed() -> None:
    quiet = CpuRound(pulled=2.0, found=1.0, computed=4.0)
    busy = CpuRound(pulled=6.0, found=2.0, computed=4.0)

    figures = {figure.name: figure for figure in cpu_figures([quiet, busy, busy])}

    barred = figures["Schedulers' CPU, pulled of computed"]
    assert (barred.value, barred.is_met) == (1.5, False)
    assert figures["Schedulers' CPU, pulled of found in L2"].value == 3.0
    assert figures["Schedulers' CPU, pulled"].value == 6.0
    assert [name for name, each in figures.items() if each.max_value is not None] == [barred.name]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "3"], "--ranks is 3; two engines need an even number"),
        (["--ranks", "4", "--gpus", "1"], "expected a GPU for each rank, or one for two ranks"),
        (["--gpus", "3"], "expected a GPU for each rank, or one for two ranks"),
        (["--model", "qwen"], "invalid choice: 'qwen'"),
    ],
)
def test_engines_that_cannot_be_placed_are_refused(
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["pull_engines", *arguments])

    with pytest.raises(SystemExit):
        pull_engines.command_line()

    assert told in capsys.readouterr().err
