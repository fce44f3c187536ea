"""Two engines of one node behind HTTP with keys, for tests of who may do what with them."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import zmq.auth

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.control_client import call_l2
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.l2_record import L2Record, l2s_of
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.supervision.spawn import NAMESPACE
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.service import AsyncService
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.hello import Role
from raydix.runtime.server.app import build_app
from raydix.runtime.server.key_file import KeyFile
from raydix.runtime.server.listener import listening
from tests.ray_cluster import IMPATIENT, own_name
from tests.runtime.server.served_engine import KEYS, MODEL

PAGE_SIZE = 16
PROMPT_TOKENS = 400
CACHEABLE = (PROMPT_TOKENS - 1) // PAGE_SIZE * PAGE_SIZE
PATIENCE_S = 120.0
NUM_QUIET = 4
WORK = ("dirty_pages", "transfers_in_flight", "num_requests_running", "num_requests_waiting")
"""What a Scheduler has under way."""
COUNTS = ("pages_ready", "pages_granted", "pages_filling", "l3_reads_ok", "l3_writes_pending")
"""What changes in L2 as news reach it."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """Two engines of one node, each behind HTTP, and both behind an ingress."""

    handles: tuple[EngineHandle, EngineHandle]
    config: EngineConfig
    keys: Path
    curve: Path
    l3: Path
    cluster: PrivateCluster
    log: list[str]
    """What the process that has started them has been told of their logs."""

    @property
    def l2(self) -> L2Record:
        [found] = [
            each
            for each in l2s_of(ray.get_runtime_context().get_node_id())
            if call_described(each)["model_path"] == self.config.model.path
        ]
        return found


def call_described(record: L2Record) -> dict[str, Any]:
    """How an L2 describes itself."""
    with ThreadPoolExecutor(1) as pool:
        described = pool.submit(lambda: asyncio.run(call_l2(record, "describe"))).result()
    return dict(described)


class Kept(logging.Handler):
    """Keeps every line."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(scope="module")
def service(
    ray_cluster: PrivateCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Engines of a model that no other test has."""
    folder = tmp_path_factory.mktemp("access")
    write_demo_checkpoint(folder / "model", seed=41)
    keys = folder / "keys.yaml"
    keys.touch(0o600)
    keys.write_text(json.dumps(KEYS))
    curve = folder / "curve"
    (curve / "clients").mkdir(parents=True)
    zmq.auth.create_certificates(curve, "server")
    zmq.auth.create_certificates(folder, "known")
    zmq.auth.create_certificates(folder, "stranger")
    (folder / "known.key").rename(curve / "clients" / "known.key")

    cache = {
        "page_size": PAGE_SIZE,
        "l1": {"num_pages": 128},
        "l2": {"bytes_per_node": "16MiB", "keep_s": 0, "pull": {}},
        "l3": {"backend": "file", "path": str(folder / "l3")},
        "load": "always",
        "prefetch": {"strategy": "wait_complete"},
        "events": {"port": 0, "replay_port": 0, "curve": str(curve)},
    }
    config = load_config({"model": {"path": str(folder / "model")}, "cache": cache})
    kept, root = Kept(), logging.getLogger()
    former_level = root.level
    root.addHandler(kept)
    root.setLevel(logging.INFO)
    with ThreadPoolExecutor() as pool:
        start = partial(start_engine, config, supervision=IMPATIENT)
        first, second = pool.map(start, (own_name("one"), own_name("other")))
    yield Service(
        handles=(first, second),
        config=config,
        keys=keys,
        curve=folder,
        l3=folder / "l3",
        cluster=ray_cluster,
        log=kept.lines,
    )
    for handle in (first, second):
        asyncio.run(handle.shutdown())
    root.removeHandler(kept)
    root.setLevel(former_level)


@pytest.fixture(params=["engine", "ingress"])
async def url(request: pytest.FixtureRequest, service: Service) -> AsyncIterator[str]:
    """HTTP for one of the engines, or for both."""
    names = [handle.name for handle in service.handles]
    engine: AsyncLLM | AsyncService = await (
        AsyncLLM.connect(names[0]) if request.param == "engine" else AsyncService.connect(names)
    )
    app = build_app({MODEL: engine}, KeyFile(service.keys))
    async with engine, listening(app, TcpAddress("127.0.0.1", 0), 1.0) as found:
        yield found


def http(url: str, key: str | None) -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S, verify=False)


def prompt(seed: int) -> list[int]:
    return [(seed * 37 + place * place) % 199 for place in range(PROMPT_TOKENS)]


async def settle(service: Service) -> dict[str, Any]:
    """Return the figures once all that was computed is in L2 and L3.

    A message between two actors shows as a change: several looks in a row must find the same.
    """
    async with asyncio.timeout(PATIENCE_S):
        former: list[Any] = []
        num_quiet = 0
        while num_quiet < NUM_QUIET:
            figures = [await handle.call("stats") for handle in service.handles]
            host = figures[0]["host"]
            work = [each["scheduler"][name] for each in figures for name in WORK]
            # What has not happened yet is no figure.
            counts = [host.get(name, 0) for name in COUNTS]
            is_quiet = [work, counts] == former and not any(work) and not host["l3_writes_pending"]
            num_quiet = num_quiet + 1 if is_quiet else 0
            former = [work, counts]
            await asyncio.sleep(0.05)
        return dict(figures[0])


async def listeners(service: Service) -> dict[str, tuple[str, bytes, Role]]:
    """Every address at which processes of the service listen: with its secret, for whom."""
    record, l2 = service.handles[0].record, service.l2
    actor = ray.get_actor(l2.actor, namespace=NAMESPACE)
    peer = await actor.peer_record.remote()
    return {
        "requests": (record.client_address, record.secret, Role.CLIENT),
        "control": (record.control_address, record.secret, Role.CLIENT),
        "L2": (l2.control_address, l2.secret, Role.CLIENT),
        "pulls": (f"tcp:{peer.host}:{peer.port}", peer.secret, Role.HOST_MEMORY),
    }
