"""Events of a stream: written where news comes in or by the task, each once and in order."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.errors import EngineDead
from raydix.ids import RequestId
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.open_requests import OnNews, RequestGroup
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import TokenizedPrompt
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import AbortRequest, FailureKind, FinishReason, TokenFrame
from raydix.runtime.server.direct_body import DIRECT_BODY
from raydix.runtime.server.errors import HttpFailure
from raydix.runtime.server.event_stream import EventStream
from tests.runtime.api.fake_engine import FakeLink, delta, failed
from tests.runtime.api.small_client import client_over

LIMITS = ModelLimits(
    fingerprint="weights",
    max_model_len=512,
    vocab_size=300,
    max_waiting_requests=1024,
    eos_token_ids=(256,),
)
PARAMS = SamplingParams(output_kind=OutputKind.DELTA, detokenize=False)
NUM_CHOICES = 2


class Numbers:
    """Writes the token ids of each choice; the first and last outputs need the task."""

    def __init__(self) -> None:
        self.begun: set[int] = set()

    def plain(self, index: int, output: RequestOutput) -> bytes | None:
        if output.finished or index not in self.begun:
            return None
        return self._written(index, output)

    async def event(self, index: int, output: RequestOutput) -> bytes:
        self.begun.add(index)
        await asyncio.sleep(0)
        return self._written(index, output)

    def closing(self) -> bytes:
        return b"end"

    def failure(self, failed: HttpFailure) -> bytes:
        return b"failed: " + failed.details.message.encode()

    def _written(self, index: int, output: RequestOutput) -> bytes:
        return b"".join(b"%d:%d " % (index, each) for each in output.outputs[0].token_ids)


@dataclass
class Connection:
    """An ASGI server's side of one request; `is_read` is whether its client reads."""

    has_direct: bool
    is_read: asyncio.Event = field(default_factory=asyncio.Event)
    has_left: asyncio.Event = field(default_factory=asyncio.Event)
    parts: list[bytes] = field(default_factory=list)
    num_direct: int = 0
    status: int | None = None
    is_over: bool = False

    @property
    def is_ready(self) -> bool:
        return self.is_read.is_set() and self.status is not None and not self.is_over

    def write(self, part: bytes) -> None:
        assert part
        assert self.is_ready
        self.num_direct += 1
        self.parts.append(part)

    @property
    def scope(self) -> dict[str, Any]:
        extensions = {DIRECT_BODY: self} if self.has_direct else {}
        return {"type": "http", "path": "/v1/completions", "extensions": extensions}

    async def receive(self) -> dict[str, Any]:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.is_read.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.parts.append(message["body"])
            self.is_over = not message.get("more_body", False)


@dataclass
class Served:
    """A stream of two choices, whose engine is the test."""

    link: FakeLink
    client: EngineClient
    connection: Connection
    answering: "asyncio.Task[None]"

    def tokens(self, *pairs: tuple[int, int]) -> None:
        """A frame of plain tokens, by choice."""
        askings = tuple(self.link.asking_of(f"r{index}") for index, _ in pairs)
        ids = int32_array([token_id for _, token_id in pairs])
        self.link._inbox.put_nowait(TokenFrame(askings=askings, token_ids=ids))

    async def turn(self) -> None:
        """Let everything that can go on do so."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def ended(self) -> bytes:
        """The whole body, at the end."""
        async with asyncio.timeout(5):
            await self.answering
        await self.client.close()
        return b"".join(self.connection.parts)


async def opened(client: EngineClient, on_news: OnNews) -> RequestGroup:
    group = RequestGroup(on_news)
    prompt = TokenizedPrompt(None, int32_array([1, 2]))
    for index in range(NUM_CHOICES):
        name = RequestId(f"r{index}")
        group.add(partial(client.open, prompt, PARAMS, name, RequestOptions()))
    return group


async def served(*, has_direct: bool = True, writer: Any = None) -> Served:
    link = FakeLink()
    client = client_over(link, LIMITS)
    connection = Connection(has_direct)
    connection.is_read.set()
    stream = EventStream(partial(opened, client), writer or Numbers(), {})
    answering = asyncio.create_task(
        stream(connection.scope, connection.receive, connection.send)  # type: ignore[arg-type]
    )
    one = Served(link, client, connection, answering)
    await one.turn()
    return one


def finish(one: Served, index: int) -> None:
    one.link.deliver(delta(f"r{index}", [99], finished=FinishReason.LENGTH))


STEPS = st.lists(st.sampled_from(["token 0", "token 1", "both", "read", "do not read", "turn"]))


@given(steps=STEPS, has_direct=st.booleans())
def test_each_token_is_sent_once_and_in_order(steps: list[str], has_direct: bool) -> None:
    async def play() -> tuple[bytes, list[list[int]]]:
        one = await served(has_direct=has_direct)
        expected: list[list[int]] = [[], []]
        for number, step in enumerate(steps):
            indexes = {"token 0": [0], "token 1": [1], "both": [0, 1]}.get(step, [])
            for index in indexes:
                expected[index].append(number)
            match step:
                case "read":
                    one.connection.is_read.set()
                case "do not read":
                    one.connection.is_read.clear()
                case "turn":
                    await one.turn()
                case _:
                    one.tokens(*((index, number) for index in indexes))
        one.connection.is_read.set()
        for index in range(NUM_CHOICES):
            finish(one, index)
            expected[index].append(99)
        return await one.ended(), expected

    body, expected = asyncio.run(play())
    assert body.endswith(b"end")
    pairs = [each.split(b":") for each in body.removesuffix(b"end").split()]
    for index in range(NUM_CHOICES):
        assert [int(token) for choice, token in pairs if int(choice) == index] == expected[index]


async def test_plain_events_need_no_task() -> None:
    one = await served()
    one.tokens((0, 1), (1, 1))
    await one.turn()
    for number in range(10):
        one.tokens((0, number), (1, number))
        await one.turn()
    assert one.connection.num_direct == 20

    finish(one, 0)
    finish(one, 1)
    await one.ended()


async def test_what_a_client_does_not_read_waits_as_one_output() -> None:
    one = await served()
    one.tokens((0, 1), (1, 1))
    await one.turn()
    num_parts = len(one.connection.parts)

    one.connection.is_read.clear()
    for number in range(200):
        one.tokens((0, number))
        await one.turn()
    # One part is on its way, and all else is still the engine client's.
    assert len(one.connection.parts) == num_parts
    one.connection.is_read.set()
    await one.turn()
    assert len(one.connection.parts) <= num_parts + 2

    finish(one, 0)
    finish(one, 1)
    assert (await one.ended()).count(b"0:") == 202


async def test_frames_that_wait_together_are_one_event() -> None:
    one = await served()
    one.tokens((0, 1), (1, 1))
    await one.turn()
    before = one.connection.num_direct

    for number in range(5):
        one.tokens((0, number))
    await one.turn()
    assert one.connection.num_direct == before + 1

    finish(one, 0)
    finish(one, 1)
    await one.ended()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_failure_is_a_status_or_an_event(has_begun: bool) -> None:
    one = await served()
    if has_begun:
        one.tokens((0, 7))
        await one.turn()
    one.link.deliver(failed("r1", FailureKind.ENGINE_DEAD, "it died"))
    body = await one.ended()

    assert one.connection.status == (200 if has_begun else 503)
    assert body == b"0:7 failed: it died" if has_begun else b'"it died"' in body
    # The other choice is not wanted any more.
    assert [each.request_id for each in one.link.sent_of(AbortRequest)] == ["r0"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_engine_that_is_gone_when_an_event_asks_it_is_told_as_a_failure(
    has_begun: bool,
) -> None:
    class Asking(Numbers):
        async def event(self, index: int, output: RequestOutput) -> bytes:
            if index == 1:
                raise EngineDead("it died")
            return await super().event(index, output)

    one = await served(writer=Asking())
    if has_begun:
        one.tokens((0, 7))
        await one.turn()
    one.tokens((1, 8))
    body = await one.ended()
    assert one.connection.status == (200 if has_begun else 503)
    assert body == b"0:7 failed: it died" if has_begun else b'"it died"' in body
    assert len(one.link.sent_of(AbortRequest)) == NUM_CHOICES


async def test_a_client_that_leaves_aborts_its_requests() -> None:
    one = await served()
    one.tokens((0, 7))
    await one.turn()
    one.connection.has_left.set()
    await one.ended()
    assert len(one.link.sent_of(AbortRequest)) == NUM_CHOICES


async def test_a_bug_where_news_comes_in_ends_that_request_alone() -> None:
    class Broken(Numbers):
        def _written(self, index: int, output: RequestOutput) -> bytes:
            if 13 in output.outputs[0].token_ids:
                raise ZeroDivisionError
            return super()._written(index, output)

    one = await served(writer=Broken())
    one.tokens((0, 1), (1, 1))
    await one.turn()
    one.tokens((0, 13))
    with pytest.raises(ZeroDivisionError):
        await one.ended()
    assert len(one.link.sent_of(AbortRequest)) == NUM_CHOICES
