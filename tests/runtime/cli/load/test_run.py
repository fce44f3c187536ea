"""Requests are sent when their load says, on a clock that the test moves."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator

from raydix.errors import EngineDead
from raydix.runtime.cli.load.arrivals import ClosedLoop, Load, OpenLoop
from raydix.runtime.cli.load.report import Outcome
from raydix.runtime.cli.load.requests import Conversations, LoadRequest
from raydix.runtime.cli.load.run import OutputCame, Usage, run_load


class FakeClock:
    """Moves to the next sleeper's time once nobody has anything else to do."""

    def __init__(self) -> None:
        self._now_s = 50.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = itertools.count()

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        time_s = self._now_s + max(0.0, seconds)
        heapq.heappush(self._sleepers, (time_s, next(self._numbers), event))
        await event.wait()

    async def move(self) -> None:
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers:
                self._now_s, _, event = heapq.heappop(self._sleepers)
                event.set()


class FakeSender:
    """The first token comes after a second, each further one a second later."""

    def __init__(self, clock: FakeClock) -> None:
        self.sent: list[LoadRequest] = []
        self.most_in_flight = self._in_flight = 0
        self._clock = clock

    async def stream(self, request: LoadRequest) -> AsyncGenerator[OutputCame | Usage, None]:
        self.sent.append(request)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            for _ in range(request.output_tokens):
                await self._clock.sleep(1.0)
                yield OutputCame()
            if request.prompt == "broken":
                raise EngineDead("gone")
            yield Usage(num_prompt_tokens=7, num_output_tokens=request.output_tokens)
        finally:
            self._in_flight -= 1


async def run(
    load: Load, requests: tuple[LoadRequest, ...]
) -> tuple[list[Outcome], FakeSender, int]:
    clock, ended = FakeClock(), []
    sender = FakeSender(clock)
    mover = asyncio.create_task(clock.move())
    outcomes = await run_load(requests, load, sender, clock, lambda: ended.append(1))
    mover.cancel()
    return outcomes, sender, len(ended)


def some_requests(count: int, prompt: str = "x") -> tuple[LoadRequest, ...]:
    return tuple(LoadRequest(prompt=prompt, output_tokens=3) for _ in range(count))


async def test_a_closed_loop_sends_the_next_request_when_one_ends() -> None:
    outcomes, sender, num_ended = await run(ClosedLoop(max_concurrent=2), some_requests(6))
    assert [each.sent_s for each in outcomes] == [0.0, 0.0, 3.0, 3.0, 6.0, 6.0]
    assert (sender.most_in_flight, num_ended) == (2, 6)
    assert [each.first_s - each.sent_s for each in outcomes if each.first_s is not None] == [1] * 6
    assert [each.latency_s for each in outcomes] == [3.0] * 6
    assert [each.tpot_s for each in outcomes] == [1.0] * 6


async def test_an_open_loop_sends_at_its_times_however_many_are_in_flight() -> None:
    outcomes, sender, _ = await run(OpenLoop(arrivals_s=(0.0, 0.5, 0.5, 9.0)), some_requests(4))
    assert [each.sent_s for each in outcomes] == [0.0, 0.5, 0.5, 9.0]
    assert [each.due_s for each in outcomes] == [0.0, 0.5, 0.5, 9.0]
    assert sender.most_in_flight == 3


async def test_a_turn_waits_for_the_one_before_it_and_is_not_late_for_that() -> None:
    chats = Conversations(
        num_conversations=1, num_turns=2, prompt_tokens=4, turn_tokens=1, output_tokens=3
    )
    outcomes, _, _ = await run(OpenLoop(arrivals_s=(0.0, 0.1)), chats.requests())
    assert [each.sent_s for each in outcomes] == [0.0, 3.0]
    assert outcomes[1].due_s == 3.0


async def test_a_request_that_fails_is_noted_and_the_others_go_on() -> None:
    requests = some_requests(1, "broken") + some_requests(2)
    outcomes, _, num_ended = await run(ClosedLoop(max_concurrent=1), requests)
    assert [each.error for each in outcomes] == ["EngineDead: gone", None, None]
    assert num_ended == 3


async def test_turns_wait_for_their_pause_at_the_speed_of_the_load() -> None:
    turns = (
        LoadRequest(prompt="a", output_tokens=2, arrival_s=0.0),
        LoadRequest(prompt="ab", output_tokens=1, arrival_s=0.0, after=0, pause_s=6.0),
    )
    outcomes, _, _ = await run(OpenLoop(arrivals_s=(0.0, 0.0), speed=2.0), turns)
    assert [(each.sent_s, each.due_s) for each in outcomes] == [(0.0, 0.0), (5.0, 5.0)]
