import asyncio
import math
import time

import pytest

from raydix.runtime.actors import turns
from raydix.runtime.actors.turns import Turns


class FakeCore:
    """Says back what it is told; `deadline_s` is what it asks for until it is told TICK."""

    def __init__(self) -> None:
        self.deadline_s: float | None = None
        self.fails = False
        self.heard: list[str] = []
        self.num_decisions = 0

    def hear(self, event: str, now_s: float) -> None:
        if self.fails:
            raise ValueError("broken")
        if event == "TICK":
            self.deadline_s = None
        self.heard.append(event)

    def decide(self, now_s: float) -> list[str]:
        self.num_decisions += 1
        heard, self.heard = self.heard, []
        return heard

    def next_deadline_s(self) -> float | None:
        return self.deadline_s


class Bench:
    def __init__(self) -> None:
        self.core = FakeCore()
        self.log: list[str] = []
        self.ticked = asyncio.Event()
        self.wanted_s: float | None = None
        self.num_fatal = 0
        self.turns = Turns[str, str](
            "TICK",
            self._carry_out,
            finish=self._finish,
            on_fatal=lambda: setattr(self, "num_fatal", 1),
        )

        self.turns.start(self.core)

    def _carry_out(self, effect: str) -> None:
        self.log.append(effect)
        if effect == "TICK":
            self.ticked.set()

    def _finish(self, now_s: float) -> float | None:
        self.log.append("|")
        if self.wanted_s is not None:
            self.ticked.set()
        wanted_s, self.wanted_s = self.wanted_s, None
        return wanted_s


async def test_events_that_wait_are_taken_in_one_turn_and_in_order() -> None:
    bench = Bench()
    for event in "abc":
        bench.turns.post(event)
    assert bench.log == []
    await asyncio.sleep(0)
    assert bench.log == [*"abc", "|"]


async def test_a_core_decides_once_about_all_that_waits() -> None:
    bench = Bench()
    for event in "abc":
        bench.turns.post(event)
    await asyncio.sleep(0)
    assert bench.core.num_decisions == 1


async def test_a_core_that_hears_for_long_decides_now_and_then_in_the_same_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_MAX_HEARING_S", 0.0)
    monkeypatch.setattr(turns, "_MAX_TURN_S", math.inf)
    bench = Bench()
    for event in "abc":
        bench.turns.post(event)
    await asyncio.sleep(0)
    assert bench.core.num_decisions == 3
    assert bench.log == [*"abc", "|"]


async def test_a_turn_that_lasts_leaves_events_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_MAX_HEARING_S", 0.0)
    monkeypatch.setattr(turns, "_MAX_TURN_S", 0.0)
    bench = Bench()
    for event in "abc":
        bench.turns.post(event)
    asyncio.get_running_loop().call_soon(bench.log.append, "another callback")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.log == ["a", "|", "another callback", "b", "|"]
    bench.turns.take_now("d")
    assert bench.log[5:] == ["c", "|", "d", "|"]


async def test_what_waits_is_taken_before_a_deadline_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_MAX_HEARING_S", 0.0)
    monkeypatch.setattr(turns, "_MAX_TURN_S", 0.0)
    bench = Bench()
    bench.core.deadline_s = time.monotonic() - 1.0
    for number in range(100):
        bench.turns.post(str(number))
    async with asyncio.timeout(5):
        await bench.ticked.wait()
    assert [event for event in bench.log if event != "|"] == [*map(str, range(100)), "TICK"]


async def test_a_deadline_makes_no_turn_of_all_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_MAX_HEARING_S", 0.0)
    monkeypatch.setattr(turns, "_MAX_TURN_S", 0.0)
    bench = Bench()
    bench.core.deadline_s = time.monotonic() - 1.0
    for number in range(100):
        bench.turns.post(str(number))
    while not bench.ticked.is_set():
        bench.log.append("another callback")
        await passes(1)
    between = "".join(
        "." if each == "another callback" else "e" for each in bench.log if each != "|"
    )
    assert max(map(len, between.split("."))) <= 2


async def test_an_event_can_be_taken_at_once_after_those_before_it() -> None:
    bench = Bench()
    bench.turns.post("a")
    bench.turns.take_now("b")
    assert bench.log == ["a", "b", "|"]


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_deadline_that_has_come_is_a_tick_once_nothing_more_is_heard() -> None:
    bench = Bench()
    bench.core.deadline_s = time.monotonic() - 1.0
    bench.turns.take_now("a")
    assert bench.log == ["a", "|"]
    await bench.ticked.wait()
    assert bench.log == ["a", "|", "TICK", "|"]


async def test_what_is_heard_while_a_deadline_waits_is_taken_before_the_tick() -> None:
    bench = Bench()
    bench.core.deadline_s = time.monotonic() - 1.0
    bench.turns.take_now("a")
    for event in "bcd":
        await passes(2)
        bench.turns.post(event)
    await bench.ticked.wait()
    assert [each for each in bench.log if each != "|"] == [*"abcd", "TICK"]


async def test_peers_that_never_stop_talking_do_not_put_a_tick_off_for_ever() -> None:
    bench = Bench()
    bench.core.deadline_s = time.monotonic() - 1.0
    bench.turns.take_now("a")
    for _ in range(1000):
        bench.turns.post("b")
        await passes(1)
        if bench.ticked.is_set():
            break
    assert 1 < bench.log.count("b") < 100
    assert bench.log.count("TICK") == 1


async def test_a_deadline_that_what_was_heard_puts_off_brings_no_tick() -> None:
    bench = Bench()
    bench.core.deadline_s = time.monotonic() - 1.0
    bench.turns.take_now("a")
    bench.core.deadline_s = None
    bench.turns.post("b")
    await passes(20)
    assert "TICK" not in bench.log


async def test_a_stop_while_a_deadline_waits_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.core.deadline_s = time.monotonic() - 1.0
    bench.turns.take_now("a")
    bench.turns.stop()
    bench.turns.take_now("b")
    await passes(20)
    assert bench.log == ["a", "|", "b", "|"]


async def test_a_later_deadline_brings_a_turn_by_itself() -> None:
    bench = Bench()
    bench.core.deadline_s = time.monotonic() + 0.001
    bench.turns.take_now("a")
    bench.turns.take_now("b")
    async with asyncio.timeout(10):
        await bench.ticked.wait()
    assert bench.log == ["a", "|", "b", "|", "TICK", "|"]


async def test_the_end_of_a_turn_may_ask_for_another_one() -> None:
    bench = Bench()
    bench.wanted_s = time.monotonic() + 0.001
    bench.turns.take_now("a")
    bench.ticked.clear()
    bench.wanted_s = 0.0
    async with asyncio.timeout(10):
        await bench.ticked.wait()
    assert bench.log[:3] == ["a", "|", "|"]
    bench.turns.stop()


async def test_a_stopped_loop_takes_no_turn_by_itself() -> None:
    bench = Bench()
    bench.core.deadline_s = time.monotonic() + 0.001
    bench.turns.take_now("a")
    bench.turns.stop()
    other = Bench()
    other.core.deadline_s = time.monotonic() + 0.002
    other.turns.take_now("b")
    async with asyncio.timeout(10):
        await other.ticked.wait()
    assert bench.log == ["a", "|"]


async def test_a_turn_that_raises_is_the_end() -> None:
    bench = Bench()
    bench.core.fails = True
    bench.turns.take_now("a")
    assert bench.num_fatal == 1


class Busy(Bench):
    """An actor whose turns last."""

    def __init__(self, turn_s: float) -> None:
        super().__init__()
        self._turn_s = turn_s

    def _carry_out(self, effect: str) -> None:
        super()._carry_out(effect)
        if effect != "TICK":
            time.sleep(self._turn_s)  # the turn itself


async def test_peers_get_as_long_to_answer_as_the_turn_that_asked_them_lasted() -> None:
    bench = Busy(0.03)
    bench.core.deadline_s = time.monotonic() + 0.01
    bench.turns.take_now("a")
    ended_s = time.monotonic()
    async with asyncio.timeout(10):
        await bench.ticked.wait()
    assert time.monotonic() - ended_s >= 0.03
    assert bench.log[:2] == ["a", "|"]


async def test_turns_that_are_always_long_do_not_put_a_deadline_off_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_MAX_GRACE_S", 0.05)
    bench = Busy(0.02)
    bench.core.deadline_s = time.monotonic()
    num_turns = 0
    while not bench.ticked.is_set():
        bench.turns.post("b")
        await passes(1)
        num_turns += 1
        # 3 of 0.02 s in the grace, then one in each pass in which the actor listens.
        assert num_turns < 40
