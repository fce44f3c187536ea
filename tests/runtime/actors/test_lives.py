"""Engines that end, and what is told of it: clients that outlive them, `serve` that gives up."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.control_client import client_hello
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.engine_record import find_record
from raydix.runtime.actors.links.handshake import GREETING, NONCE_BYTES
from raydix.runtime.actors.links.link import LinkRefused
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.hello import Role
from tests.network_namespace import other_host
from tests.ray_cluster import SharedEngine, own_name
from tests.runtime.actors.bereaved_client import BereavedClient
from tests.runtime.actors.serve_process import CLIENT, SECRET, here, line_of, running, serving

pytestmark = [pytest.mark.ray, pytest.mark.slow]

DEAD_S = 1.0
"""Within which a client hears that its engine has ended."""
RAY_ENDS_S = 1.0
"""The time that Ray, and then the kernel, take to end the other actors of an engine that gives up.
"""
SERVE_ENDS_S = 10.0
CABLE_S = 30.0
"""The time until a client notices that nothing comes from its engine's host any more."""
PROMPT = list(range(40))
_ANY_HOST_S = 300.0
"""Time for what is running to end, on however slow a host."""
LONG = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True}


def test_a_client_hears_at_once_that_its_engine_is_gone(bereaved: BereavedClient) -> None:
    assert bereaved.heard_s - bereaved.killed_s < here(DEAD_S)
    _, took_s, reason = bereaved.asked_again.split(maxsplit=2)
    assert float(took_s) < here(DEAD_S)
    assert f"no engine named {bereaved.name}" in reason


def test_serve_says_why_it_ends(bereaved: BereavedClient) -> None:
    assert bereaved.serve_ended_s - bereaved.killed_s < here(SERVE_ENDS_S)
    assert bereaved.serve_status == 1
    last = bereaved.serve_said.splitlines()[-1]
    assert last.startswith(f"EngineAway: the link to the Supervisor of engine {bereaved.name}")
    assert find_record(bereaved.name) is None


@pytest.fixture
async def fragile(ray_cluster: PrivateCluster, checkpoint: Path) -> AsyncIterator[EngineHandle]:
    """An engine that gives up at the first crash."""
    config = load_config(
        {
            "model": {"path": str(checkpoint)},
            # Another L2 than that of the engine which tests share.
            "cache": {
                "page_size": 8,
                "l1": {"num_pages": 256},
                "l2": {"bytes_per_node": "4MiB", "keep_s": 0},
            },
        }
    )
    supervision = Supervision(max_crashes=0, heartbeat_interval_s=0.5, drain_timeout_s=_ANY_HOST_S)
    handle = await asyncio.to_thread(
        start_engine, config, own_name("fragile"), supervision=supervision
    )
    yield handle
    await handle.shutdown()


async def test_an_engine_that_gives_up_says_why_to_all_at_once(fragile: EngineHandle) -> None:
    async with await AsyncLLM.connect(fragile.name) as engine:
        waiting = asyncio.create_task(engine.wait_ended())
        outputs = engine.generate(PROMPT, LONG)
        await anext(outputs)

        killed_s = time.monotonic()
        os.kill((await fragile.call("health"))["gpu0"]["pid"], signal.SIGKILL)
        reason = f"engine {fragile.name} has given up: gpu0 ended 1 times"
        with pytest.raises(EngineDead, match=reason):
            await waiting
        with pytest.raises(EngineDead):
            async for _ in outputs:
                pass
        assert time.monotonic() - killed_s < here(DEAD_S + RAY_ENDS_S)

        began_s = time.monotonic()
        with pytest.raises(EngineDead, match=reason):
            await anext(engine.generate(PROMPT, LONG))
        with pytest.raises(EngineDead, match="given up"):
            await engine.stats()
        assert time.monotonic() - began_s < here(DEAD_S)


async def until_refused(engine: AsyncLLM) -> None:
    """Send short requests: until the Scheduler has heard that it is to stop, they are taken."""
    while True:
        async for _ in engine.generate(PROMPT, {"max_tokens": 1}):
            pass


async def test_running_requests_end_before_the_engine_does(fragile: EngineHandle) -> None:
    async with await AsyncLLM.connect(fragile.name) as engine:
        outputs = engine.generate(PROMPT, {**LONG, "max_tokens": 600})
        await anext(outputs)
        stopping = asyncio.create_task(fragile.shutdown())

        with pytest.raises(EngineDead, match="shutting down and takes no new requests"):
            await until_refused(engine)

        last = [output async for output in outputs][-1]
        assert last.outputs[0].finish_reason == "length"
        await stopping
        with pytest.raises(EngineDead, match="no engine named"):
            await AsyncLLM.connect(fragile.name)


async def test_control_calls_need_no_ray(shared_engine: SharedEngine) -> None:
    program = (
        "import asyncio, ray, sys\n"
        "from raydix.runtime.api.client import AsyncLLM\n"
        "async def main():\n"
        "    async with await AsyncLLM.connect(sys.argv[1]) as engine:\n"
        "        stats, dropped = await engine.stats(), await engine.flush()\n"
        "        print(sorted(stats), sorted(dropped), ray.is_initialized())\n"
        "asyncio.run(main())\n"
    )
    with running("-c", program, shared_engine.name) as client:
        out, err = await asyncio.to_thread(client.communicate, timeout=60)
    expected = ["gpu0", "gpu1", "host", "restarts", "scheduler", "storage", "storage_errors"]
    assert out == f"{expected} ['l1_pages', 'l2_pages'] False\n", err


@dataclass(frozen=True)
class Listening:
    """An engine that listens for clients on other hosts, on every interface."""

    name: str
    port: int


@pytest.fixture(scope="module")
def listening(checkpoint: Path) -> Iterator[Listening]:
    name = own_name("afar")
    with serving(checkpoint, name, "--listen", "0.0.0.0:0") as serve:
        words = line_of(serve, "--connect").split()
        connect = words[words.index("--connect") + 1]
        assert connect == name
        (connect,) = [word for word in line_of(serve, "elsewhere").split() if f"{name}@" in word]
        yield Listening(name, int(connect.rpartition(":")[2]))
        serve.send_signal(signal.SIGTERM)
        serve.communicate(timeout=60)


def test_a_second_engine_of_a_name_is_refused(listening: Listening, checkpoint: Path) -> None:
    with serving(checkpoint, listening.name) as second:
        _, said = second.communicate(timeout=60)
    assert second.returncode == 1
    assert said.splitlines()[-1].startswith(
        f"ConfigError: The name {listening.name} is taken: "
        "an engine of this user has it on this host"
    )


async def record_of_a_handshake(port: int) -> tuple[bytes, int]:
    """What a true client says first, and how much of it the gateway answers."""
    said, heard = bytearray(), bytearray()

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, into: bytearray):
        while data := await source.read(1 << 16):
            into += data
            sink.write(data)
        sink.close()

    async def stand_between(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far, far_out = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(near, far_out, said), pass_on(far, near_out, heard))

    server = await asyncio.start_server(stand_between, "127.0.0.1", 0)
    address = f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"
    link = await connect(address, client_hello(Role.SCHEDULER), SECRET.encode())
    link.close()
    server.close()
    return bytes(said), len(heard)


async def test_wrong_and_replayed_hellos_over_tcp_are_refused(listening: Listening) -> None:
    address = f"tcp:127.0.0.1:{listening.port}"
    for secret in (b"0" * 64, SECRET[:-1].encode()):
        with pytest.raises(LinkRefused):
            await connect(address, client_hello(Role.SCHEDULER), secret)

    said, num_heard = await record_of_a_handshake(listening.port)
    assert SECRET.encode() not in said
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    writer.write(said)
    answer = await reader.read()
    writer.close()
    # The challenge, and nothing that the recorded client was told besides.
    assert len(answer) == 4 + len(GREETING) + NONCE_BYTES < num_heard


def test_a_client_on_another_host_streams_and_notices_when_the_engines_host_is_gone(
    listening: Listening,
) -> None:
    with other_host() as host:
        address = f"{host.gateway}:{listening.port}"
        connect = f"{listening.name}@{address}"
        with running("-m", "raydix", "cache", "stats", "--connect", connect, host=host) as stats:
            out, err = stats.communicate(timeout=60)
            assert stats.returncode == 0, err
            assert "l1" in out.lower()

        # With no way but the cable, it cannot have found the engine by anything on this host.
        with running("-c", CLIENT, listening.name, address, host=host) as client:
            line_of(client, "streams")
            host.pull_cable()
            pulled_s = time.monotonic()
            _, heard_s, _ = line_of(client, "dead").split(maxsplit=2)
            assert float(heard_s) - pulled_s < here(CABLE_S)
