"""KV events over ZMQ: who follows them knows of each prompt what the cores have in which tier.

A simulated engine goes through thousands of random operations, deaths of all its actors included.
What its Scheduler tells is published over real sockets: to a subscriber that was there from the
start, to one that comes when all is over, and to one that has lost a batch. The indexer goes by the
wire alone; where ai-dynamo-runtime is installed, Dynamo's SelectionService does the same
(tests/dynamo_events.sh makes an environment for it).
"""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio

from raydix.runtime.actors.kv_sockets import KvSockets
from raydix.runtime.cache.kv_publication import Publication
from raydix.runtime.cache.kv_wire import AllBlocksCleared, WireEvent, encode_batch
from raydix.runtime.cache.page_key import ChainKeys, extend_keys, pack_tokens, root_key
from raydix.runtime.config.events import EventsSection
from raydix.runtime.messages.kv_events import KvNews
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from tests.kv_subscriber import KvSubscriber
from tests.naive_indexer import Overlap
from tests.simulation.followers import Follower
from tests.simulation.workload import BASE_SETTINGS, STORAGE, Workload, run_workload

WORKLOAD = Workload(
    seed=5,
    settings=replace(BASE_SETTINGS, num_lanes=1, num_pages=(60,)),
    storage=replace(STORAGE, max_told_objects=400),
    l2_pages=120,
    num_requests=300,
    span_s=20.0,
    num_prefixes=12,
    salt_fraction=0.3,
    num_rank_kills=4,
    num_host_kills=2,
    num_host_flaps=2,
    num_storage_kills=2,
    num_scheduler_kills=2,
    num_flushes=3,
)
SIZE = WORKLOAD.settings.page_size
NUM_PROMPTS = 1000
PATIENCE_S = 120.0
DYNAMO = Path(os.environ.get("RAYDIX_DYNAMO_PYTHON", ".venv/dynamo/bin/python"))
Prompt = tuple[list[int], str | None]


@dataclass
class Story:
    """What was published in the course of a run, and what the last Scheduler's core knows then."""

    batches: list[list[WireEvent]]
    publication: Publication
    core: SchedulerCore
    prompts: list[Prompt]
    num_operations: int


@pytest.fixture(scope="module")
def story() -> Story:
    """The story of one simulated engine."""
    batches: list[list[WireEvent]] = [[AllBlocksCleared()]]
    publication = Publication(WORKLOAD.settings.layout)
    cores: list[SchedulerCore] = []
    num_operations = 0
    hear, hear_event = Follower.hear, SchedulerCore.hear

    def hear_and_publish(self: Follower, effect: events.TellFollower) -> None:
        hear(self, effect)
        # The first one of each Scheduler is there from its start.
        if self._connection != -1:
            return
        if not cores or cores[-1] is not self._core:
            cores.append(self._core)
            publication.begin()
        told = publication.follow(KvNews(events=effect.events, is_whole=effect.is_whole))
        batches.append([each.event for each in told])

    def count(self: SchedulerCore, event: events.Event, now_s: float) -> None:
        nonlocal num_operations
        num_operations += 1
        hear_event(self, event, now_s)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Follower, "hear", hear_and_publish)
        patched.setattr(SchedulerCore, "hear", count)
        cluster = run_workload(WORKLOAD)
    assert len(cores) == WORKLOAD.num_scheduler_kills + 1
    known = [
        ([*answer.submit.token_ids.tolist(), *answer.output], answer.submit.cache_salt)
        for answer in cluster.history
    ]
    prompts = _draw_prompts(known)
    return Story(
        [each for each in batches if each], publication, cores[-1], prompts, num_operations
    )


def _draw_prompts(known: list[Prompt]) -> list[Prompt]:
    """Prompts that go along known ones for a while, some under a salt that is not theirs."""
    draw = random.Random(1)
    prompts: list[Prompt] = []
    for _ in range(NUM_PROMPTS):
        tokens, salt = draw.choice(known)
        end = draw.randrange(len(tokens) + 1)
        tail = [draw.randrange(7) for _ in range(draw.choice([0, 0, 3, 9]))]
        salt = draw.choice([salt, salt, salt, None, "salt", "other"])
        prompts.append(([*tokens[:end], *tail, 1], salt))
    return prompts


def overlap_of(core: SchedulerCore, prompt: Prompt) -> Overlap:
    """What the core itself has of a prompt."""
    tokens, salt = prompt
    root = root_key(cache_salt=salt)
    keys = extend_keys(root, pack_tokens(tokens), SIZE)
    num_pages = len(tokens) // SIZE
    device = core._lanes[0].l1.tree.match(root, pack_tokens(tokens)).num_pages
    view = core._source.view
    chain = ChainKeys(keys)
    host = device + view.keys.count_resident(0, chain, device, num_pages)
    disk = host + view.objects.count_resident(0, chain, host, num_pages)
    return Overlap(device, host, disk)


class Streams:
    """Owns: three streams that tell the same, the last of which loses a batch."""

    def __init__(self, context: Any, story: Story) -> None:
        section = EventsSection(port=0, replay_port=0, buffer_batches=200)
        self._story = story

        def snapshot(lane: int) -> bytes:
            return encode_batch([AllBlocksCleared(), *story.publication.state(lane)], 0.0, lane)

        self.sockets = [KvSockets(context, section, None, 0, snapshot) for _ in range(3)]
        self._tasks = [asyncio.create_task(each.answer()) for each in self.sockets]

    @property
    def endpoints(self) -> list[tuple[str, str]]:
        return [(each.endpoint, each.replay_endpoint) for each in self.sockets]

    async def publish_all(self) -> None:
        """Publish the story; the third stream loses a batch in the middle."""
        lost = len(self._story.batches) // 2
        for number, batch in enumerate(self._story.batches):
            payload = encode_batch(batch, 0.0, 0)
            for stream, sockets in enumerate(self.sockets):
                if stream == 2 and number == lost:
                    sockets._ring.add(payload)
                else:
                    await sockets.publish(payload)
            # Who reads keeps up.
            await asyncio.sleep(0.001)

    async def nudge(self) -> None:
        """Publish a batch of nothing, by which a subscriber notices what it has missed."""
        for sockets in self.sockets:
            await sockets.publish(encode_batch([], 0.0, 0))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sockets in self.sockets:
            sockets.close()


@asynccontextmanager
async def opened(story: Story) -> AsyncIterator[tuple[Any, Streams]]:
    """A context of ZMQ, and the streams."""
    context = zmq.asyncio.Context()
    streams = Streams(context, story)
    try:
        yield context, streams
    finally:
        await streams.close()
        context.destroy(linger=0)


async def until_known(streams: Streams, differing: Callable[[], Any]) -> None:
    """Wait until nothing differs; raises AssertionError with what still does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        await streams.nudge()
        await asyncio.sleep(0.05)
        found = differing()
        found = await found if asyncio.iscoroutine(found) else found
        if not found:
            return
        assert time.monotonic() < deadline_s, found


def test_the_story_tells_of_every_tier(story: Story) -> None:
    overlaps = [overlap_of(story.core, prompt) for prompt in story.prompts]
    assert story.num_operations >= 10_000
    assert any(each.device for each in overlaps)
    assert any(each.host > each.device for each in overlaps)
    assert any(each.disk > each.host for each in overlaps)
    assert any(each.disk and salt for each, (_, salt) in zip(overlaps, story.prompts, strict=True))


async def test_an_indexer_knows_what_the_cores_know(story: Story) -> None:
    expected = [overlap_of(story.core, prompt) for prompt in story.prompts]
    async with opened(story) as (context, streams):
        (first, *first_again), late, (third, *third_again) = streams.endpoints
        at_once = KvSubscriber(context, first, *first_again)
        losing = KvSubscriber(context, third, *third_again)
        await streams.publish_all()
        subscribers = [at_once, KvSubscriber(context, *late), losing]

        def differing() -> list[str]:
            found = []
            for number, subscriber in enumerate(subscribers):
                subscriber.raise_failure()
                for prompt, wanted in zip(story.prompts, expected, strict=True):
                    known = subscriber.indexer.overlap(prompt[0], SIZE, prompt[1])
                    if known != wanted:
                        found.append(f"stream {number}: {known} instead of {wanted}")
            return found[:3]

        await until_known(streams, differing)
        assert subscribers[1].num_snapshots == 1
        assert losing.num_replays >= 1
        for subscriber in subscribers:
            await subscriber.close()


@pytest.mark.skipif(
    not DYNAMO.exists(), reason=f"no Dynamo at {DYNAMO}: tests/dynamo_events.sh makes it"
)
async def test_dynamo_knows_what_the_cores_know(story: Story) -> None:
    expected = [overlap_of(story.core, prompt) for prompt in story.prompts]
    async with opened(story) as (_, streams):
        there = await Dynamo.start([streams.endpoints[0], streams.endpoints[2]])
        await streams.publish_all()
        late = await Dynamo.start([streams.endpoints[1]])

        async def differing() -> list[str]:
            found = []
            answers = [*await there.ask(story.prompts), *await late.ask(story.prompts)]
            for known in answers:
                found += [
                    f"{one} instead of {wanted}"
                    for one, wanted in zip(known, expected, strict=True)
                    if one != wanted
                ]
            return found[:3]

        try:
            await until_known(streams, differing)
        finally:
            await there.end()
            await late.end()


class Dynamo:
    """Owns: a process with a SelectionService that follows some streams."""

    def __init__(self, process: asyncio.subprocess.Process, num_streams: int) -> None:
        self._process, self._num_streams = process, num_streams

    @classmethod
    async def start(cls, streams: list[tuple[str, str]]) -> "Dynamo":
        process = await asyncio.create_subprocess_exec(
            str(DYNAMO),
            str(Path(__file__).parents[1] / "dynamo_selection.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 24,
        )
        service = cls(process, len(streams))
        assert await service._exchange({"block_size": SIZE, "streams": streams}) == "ready"
        return service

    async def ask(self, prompts: list[Prompt]) -> list[list[Overlap]]:
        """The overlap of each prompt, for each stream."""
        scores = await self._exchange(prompts)
        return [
            [Overlap(*each.get(str(stream), (0, 0, 0))) for each in scores]
            for stream in range(self._num_streams)
        ]

    async def _exchange(self, line: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        await self._process.stdin.drain()
        return json.loads(await self._process.stdout.readline())

    async def end(self) -> None:
        self._process.kill()
        await self._process.wait()
