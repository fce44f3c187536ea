"""A service on several nodes, whose nodes die under streams: all of it for real, over HTTP."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.ray_cluster import own_name
from tests.service.many_nodes import (
    ManyNodes,
    Served,
    Stream,
    body_of,
    client,
    many_nodes,
    until_serving,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NUM_STREAMS = 16


@pytest.fixture(scope="module")
def nodes() -> Iterator[ManyNodes]:
    """A head and two more nodes."""
    with many_nodes() as made:
        for _ in range(2):
            made.add()
        yield made


@pytest.fixture(scope="module")
def config(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("service") / "engine.yaml"
    path.write_text(
        f"model: {{path: {checkpoint}}}\n"
        "cache: {page_size: 16, l1: {num_pages: 512}, l2: {bytes_per_node: 16MiB}, load: always}\n"
    )
    return path


@pytest.fixture(scope="module")
def served(nodes: ManyNodes, config: Path) -> Iterator[Served]:
    """A service of two engines, the ingress of which is on the head."""
    made = Served(
        own_name("prod"),
        str(config),
        *("--nodes", "2", "--address", nodes.address, "--http", "127.0.0.1:0"),
    )
    yield made
    asyncio.run(made.stop())


async def all_streams(http: httpx.AsyncClient, kill: Callable[[], None] | None) -> list[list[int]]:
    """The tokens of all streams; once all have begun something is killed."""
    streams = [Stream(http, body_of(number)) for number in range(NUM_STREAMS)]
    if kill is not None:
        await asyncio.gather(*(each.has_begun.wait() for each in streams))
        await asyncio.to_thread(kill)
    return await asyncio.gather(*(each.reading for each in streams))


async def test_streams_outlive_a_node_and_its_engine_comes_up_elsewhere(
    nodes: ManyNodes, served: Served
) -> None:
    url = await served.url()
    engines = await until_serving(served.name, 2)
    assert len(set(engines.values())) == 2
    async with client(url) as http:
        expected = await all_streams(http, None)
        victim = next(node for node in engines.values() if node != nodes.head)
        assert await all_streams(http, lambda: nodes.kill(victim)) == expected

        after = await until_serving(served.name, 2, without=victim)
        assert len(set(after.values())) == 2
        assert await all_streams(http, None) == expected


async def test_a_node_that_joins_gets_the_engine_that_is_missing(
    nodes: ManyNodes, served: Served
) -> None:
    engines = await until_serving(served.name, 2)
    victim = next(node for node in engines.values() if node != nodes.head)
    nodes.kill(victim)
    await until_serving(served.name, 1, without=victim)
    joined = nodes.add()
    assert joined in (await until_serving(served.name, 2)).values()
