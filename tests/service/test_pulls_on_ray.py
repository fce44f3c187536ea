"""Engines of one Ray cluster that find each other and pull pages, each actor in its process."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.loading import load_config
from tests.ray_cluster import IMPATIENT, own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part]

PAGE_SIZE = 16
WAIT_S = 120.0
"""The time for what must come; nothing is measured by it."""
_GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@contextmanager
def serving(name: str, checkpoint: Path) -> Iterator[EngineHandle]:
    """An engine that exchanges pages with others of the cluster."""
    config = load_config(
        {
            "model": {"path": str(checkpoint)},
            "cache": {
                "page_size": PAGE_SIZE,
                "load": "always",
                "l1": {"num_pages": 128},
                # Each stands for a node, and has an L2 of its own.
                "l2": {"bytes_per_node": "16MiB", "pull": {}, "shared": False},
                "prefetch": {"strategy": "wait_complete"},
            },
        }
    )
    handle = start_engine(config, own_name(name), supervision=IMPATIENT)
    try:
        yield handle
    finally:
        asyncio.run(handle.shutdown())


@pytest.fixture(scope="module")
def two_nodes(
    ray_cluster: PrivateCluster, checkpoint: Path
) -> Iterator[tuple[EngineHandle, EngineHandle]]:
    with ExitStack() as stack:
        first = stack.enter_context(serving("first", checkpoint))
        second = stack.enter_context(serving("second", checkpoint))
        yield first, second


async def ask(engine: AsyncLLM, number: int) -> RequestOutput:
    """The answer to a prompt of ten pages."""
    prompt = [(number * 31 + position * 7) % 190 for position in range(10 * PAGE_SIZE)]
    async for output in engine.generate({"prompt_token_ids": prompt}, _GREEDY):
        last = output
    return last


async def until(handle: EngineHandle, is_so: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for a state that an engine's figures show; an actor may be away meanwhile."""
    async with asyncio.timeout(WAIT_S):
        while True:
            stats = await handle.call("stats")
            if stats["scheduler"] and stats["host"] and is_so(stats):
                return
            await asyncio.sleep(0.05)


def tokens_of(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


async def test_pages_are_pulled_and_the_holders_death_fails_nothing(
    two_nodes: tuple[EngineHandle, EngineHandle],
) -> None:
    first, second = two_nodes
    async with (
        await AsyncLLM.connect(first.name) as holder,
        await AsyncLLM.connect(second.name) as puller,
    ):
        expected = [tokens_of(await ask(holder, number)) for number in range(8)]
        await until(first, lambda stats: stats["host"]["pages_ready"] >= 80)
        await until(second, lambda stats: stats["scheduler"]["peer_known_pages"] >= 80)

        num_pulled = 0
        async with asyncio.timeout(WAIT_S):
            # On a busy machine an answer may come too late, and the prompt be computed.
            while num_pulled < 9 * PAGE_SIZE:
                await second.call("flush")
                pulled = await ask(puller, 0)
                assert tokens_of(pulled) == expected[0]
                num_pulled = pulled.metrics.cached_tokens_by_source.get("peer", 0)

        asking = [asyncio.create_task(ask(puller, number)) for number in range(1, 8)]
        pid = (await first.call("health"))["host"]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert [tokens_of(await each) for each in asking] == expected[1:]

        # The next HostMemory of that node is found, too.
        expected = [tokens_of(await ask(holder, number)) for number in range(8, 10)]
        await until(second, lambda stats: stats["scheduler"]["peer_known_pages"] >= 10)
        await until(second, lambda stats: stats["host"]["peers"] >= 1)
        assert [tokens_of(await ask(puller, number)) for number in range(8, 10)] == expected
        for handle in two_nodes:
            await handle.call("check")
