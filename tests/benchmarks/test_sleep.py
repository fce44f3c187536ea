"""The benchmark of sleep, with a tiny model and few cycles: it loses nothing, and finds what is."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import sleep
from benchmarks.engine.engines import DENSE_TINY, Options
from raydix.runtime.testing.engine import InProcessEngine

TINY = Options(device="cpu", is_tiny=True, repeats=1)
FEW = replace(
    sleep.TINY, context_tokens=64, num_contexts=4, num_streams=4, num_cycles=2, num_turns=2
)


def measured() -> dict[str, Any]:
    figures = asyncio.run(sleep.measure(TINY, FEW, DENSE_TINY))
    return {each.name: each for each in figures}


def test_a_tiny_run_meets_the_bars_that_no_machine_changes() -> None:
    figures = measured()
    barred = {name for name, each in figures.items() if not each.is_met}
    assert barred == set()
    assert figures["found in L2 by first requests"].value == 1.0
    assert figures["found in L2 after turns"].value == 1.0
    assert figures["requests beside cycles"].value >= FEW.num_streams
    assert figures["pages"].value > 0
    assert figures["weights"].value > 0


def test_an_engine_that_forgets_when_it_sleeps_misses_the_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wake = InProcessEngine.wake

    async def wake_and_forget(self: InProcessEngine) -> dict[str, Any]:
        woken = await wake(self)
        await self.flush()
        return woken

    monkeypatch.setattr(InProcessEngine, "wake", wake_and_forget)
    figures = measured()
    assert not figures["found in L2 by first requests"].is_met
    assert figures["requests lost, cycles"].is_met
