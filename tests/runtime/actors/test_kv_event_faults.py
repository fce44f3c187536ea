"""KV events of a real engine whose actors are killed: what they say is what requests find then."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.loading import load_config
from tests.kv_subscriber import KvSubscriber
from tests.naive_indexer import Overlap
from tests.ray_cluster import IMPATIENT, own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROMPT = list(range(3, 3 + 70))
NUM_PAGES = 4
PATIENCE_S = 300.0


@dataclass
class Followed:
    """An engine and who follows it."""

    handle: EngineHandle
    subscriber: KvSubscriber

    async def ask(self) -> dict[str, int]:
        """Where the prompt's tokens came from."""
        params = {"max_tokens": 1, "temperature": 0.0}
        async with await AsyncLLM.connect(self.handle.name) as client:
            [output] = [each async for each in client.generate(PROMPT, params)]
        return dict(output.metrics.cached_tokens_by_source)

    def overlap(self) -> Overlap:
        return self.subscriber.indexer.overlap(PROMPT, 16, None)

    async def until(self, holds: Callable[[Overlap], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds(self.overlap()):
            self.subscriber.raise_failure()
            assert time.monotonic() < deadline_s, self.overlap()
            await asyncio.sleep(0.02)

    async def until_backed_up(self) -> None:
        """Wait until L2 and L3 have the prompt, which an overlap cannot say while L1 has it."""
        await self.until(
            lambda _: all(
                len(self.subscriber.indexer.held[medium]) == NUM_PAGES
                for medium in ("CPU", "STORAGE")
            )
        )

    async def kill(self, label: str) -> None:
        """End an actor's process, and wait until all actors serve again."""
        health = await self.handle.call("health")
        os.kill(health[label]["pid"], signal.SIGKILL)
        deadline_s = time.monotonic() + PATIENCE_S
        while (now := await self.handle.call("health"))[label]["incarnation"] == health[label][
            "incarnation"
        ] or not now[label]["serves"]:
            assert time.monotonic() < deadline_s, now
            await asyncio.sleep(0.05)
        await self.handle.call("wait_all_serving")


async def figures_of_events(handle: EngineHandle) -> dict[str, Any]:
    """What the actor of events says of itself, once it serves: an engine waits for none."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (figures := (await handle.call("stats")).get(ActorKind.EVENTS.value)):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    return dict(figures)


@pytest.fixture
async def followed(
    ray_cluster: PrivateCluster, checkpoint: Path, tmp_path: Path
) -> AsyncIterator[Followed]:
    """An engine with one rank and three tiers, and a subscriber of its events."""
    config = load_config(
        {
            "model": {"path": str(checkpoint)},
            "cache": {
                "page_size": 16,
                "l1": {"num_pages": 128},
                "l2": {"bytes_per_node": "4MiB", "shared": False},
                "l3": {"backend": "file", "path": str(tmp_path / "l3")},
                "prefetch": {"strategy": "wait_complete", "min_tokens": 1},
                "events": {"port": 0, "replay_port": 0},
            },
        }
    )
    name = own_name("followed")
    handle = await asyncio.to_thread(start_engine, config, name, supervision=IMPATIENT)
    context = zmq.asyncio.Context()
    try:
        figures = await figures_of_events(handle)
        subscriber = KvSubscriber(context, figures["endpoints"][0], figures["replay_endpoints"][0])
        yield Followed(handle, subscriber)
        await subscriber.close()
    finally:
        context.destroy(linger=0)
        await handle.shutdown()


async def test_events_say_after_each_death_what_the_next_request_finds(followed: Followed) -> None:
    assert not (await followed.ask()).get("l1")
    await followed.until(lambda known: known.device == NUM_PAGES)
    await followed.until_backed_up()

    await followed.kill("gpu0")
    await followed.until(lambda known: known == Overlap(0, NUM_PAGES, NUM_PAGES))
    assert (await followed.ask())["l2"] == NUM_PAGES * 16
    await followed.until(lambda known: known.device == NUM_PAGES)

    # L1 goes with the Scheduler; L2 stays, and its pages are known to the next one.
    await followed.kill("scheduler")
    await followed.until(lambda known: known == Overlap(0, NUM_PAGES, NUM_PAGES))
    assert (await followed.ask())["l2"] == NUM_PAGES * 16

    # The arena's index goes with HostMemory: what is read from L3 is told as it comes.
    await followed.kill("host")
    await followed.until(lambda known: known.device == NUM_PAGES)
    assert (await followed.ask())["l1"] == NUM_PAGES * 16
