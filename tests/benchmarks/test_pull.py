"""Pulls beside plain sockets: what is measured is moved, at any speed."""

import asyncio
import shutil

import pytest

from benchmarks.pull import Round, Setting, figures, measure

_TINY = Setting(page_bytes=64 << 10, arena_bytes=4 << 20, num_streams=2, rounds=1, round_s=0.05)


def test_every_way_moves_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    rounds = asyncio.run(measure(_TINY))

    assert rounds["iperf3"] == []
    for name in ("pull", "plain"):
        [moved] = rounds[name]
        assert moved.num_bytes > 0
        assert moved.seconds >= _TINY.round_s
        assert moved.cpu_s > 0


def test_ratios_are_taken_round_by_round() -> None:
    fast, slow = Round(4 * 10**9, 1.0, 2.0), Round(2 * 10**9, 1.0, 2.0)

    made = figures({"pull": [fast, slow, slow], "plain": [fast, slow, fast], "iperf3": []})

    by_name = {figure.name: figure.value for figure in made}
    assert by_name["pull of plain"] == 1.0
    assert by_name["pull throughput"] == 2.0
    assert by_name["plain cpu per GB"] == 0.5
    assert "pull of iperf3" not in by_name
