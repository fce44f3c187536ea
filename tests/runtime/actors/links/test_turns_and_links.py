"""A busy actor hears what its peers have said before it judges them, over every link."""

import asyncio
import time

from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.actors.links.link import BlockingLink, Link, LinkClosed
from raydix.runtime.actors.turns import Turns
from raydix.runtime.messages.codec import Message
from raydix.runtime.testing.links import in_process_blocking_pair
from tests.runtime.actors.links.link_ends import (
    FAR,
    NEAR,
    SECRET,
    large,
    listening,
    numbered,
    short_folder,
    unique_unix_address,
)


class Waiting:
    """A core that asks, and notes whether the answers came before the time was up."""

    def __init__(self) -> None:
        self.deadline_s: float | None = None
        self.heard: list[str] = []
        self._asks = False

    def hear(self, event: Message | str, now_s: float) -> None:
        self.heard.append(event if isinstance(event, str) else type(event).__name__)
        if event == "ask":
            self.deadline_s = now_s
            self._asks = True
        if event == "tick":
            self.deadline_s = None

    def decide(self, now_s: float) -> list[str]:
        asks, self._asks = self._asks, False
        return ["ask"] if asks else []

    def next_deadline_s(self) -> float | None:
        return self.deadline_s


async def _judge(near: Link, far: BlockingLink) -> list[str]:
    """What a core hears whose turn lasts past its deadline, when its peer has answered."""
    core = Waiting()

    def answer(_: str) -> None:
        # The peer's answers arrive while the turn goes on; more of them than one read takes.
        far.send(numbered(1))
        for _ in range(8):
            far.send(large(1 << 12))
        assert time.monotonic() >= (core.deadline_s or 0.0)

    turns = Turns[Message | str, str]("tick", answer, on_fatal=lambda: core.heard.append("fatal"))
    turns.start(core)

    async def read() -> None:
        try:
            while True:
                turns.post(await near.receive())
        except LinkClosed:
            return

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    turns.take_now("ask")
    async with asyncio.timeout(10):
        while core.heard[-1] not in ("tick", "fatal"):
            await asyncio.sleep(0)
    turns.stop()
    near.close()
    await reading
    return core.heard


ANSWERED = ["ask", "ProcessDrained", *["StepPlan"] * 8, "tick"]


async def test_answers_in_a_socket_are_heard_before_the_deadline_is_judged() -> None:
    with short_folder() as folder:
        async with listening(unique_unix_address(folder)) as (listener, links):
            far = await asyncio.to_thread(connect_blocking, listener.address, FAR, SECRET)
            assert await _judge(await links.get(), far) == ANSWERED
            far.close()


async def test_answers_of_a_thread_are_heard_before_the_deadline_is_judged() -> None:
    near, far = in_process_blocking_pair(NEAR, FAR)
    assert await _judge(near, far) == ANSWERED
    far.close()
