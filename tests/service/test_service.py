"""Several engines behind one handle, each actor in its process, of which all of one are killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle, find_supervisor
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.api.service import AsyncService
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from tests.ray_cluster import IMPATIENT, own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
NUM_TOKENS = 200
NUM_STREAMS = 16
WAIT_S = 120.0
"""The time for what must come; nothing is measured by it."""


def config_of(checkpoint: Path) -> EngineConfig:
    return load_config(
        {
            "model": {"path": str(checkpoint)},
            "cache": {
                "page_size": 16,
                "l1": {"num_pages": 512},
                "l2": {"bytes_per_node": "16MiB", "shared": False},
            },
        }
    )


@contextmanager
def serving(name: str, checkpoint: Path) -> Iterator[EngineHandle]:
    handle = start_engine(config_of(checkpoint), name, supervision=IMPATIENT)
    try:
        yield handle
    finally:
        asyncio.run(handle.shutdown())


@pytest.fixture(scope="module")
def names(ray_cluster: PrivateCluster, checkpoint: Path) -> Iterator[tuple[str, str]]:
    """Two engines of one model."""
    names = own_name("left"), own_name("right")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(serving(name, checkpoint))
        yield names


@pytest.fixture
def doomed(ray_cluster: PrivateCluster, checkpoint: Path) -> Iterator[str]:
    """One more engine of the model."""
    name = own_name("doomed")
    with serving(name, checkpoint):
        yield name


def params(stream: int) -> dict[str, Any]:
    """Half of the streams are sampled."""
    temperature = 0.0 if stream % 2 else 1.0
    return {
        "max_tokens": NUM_TOKENS,
        "temperature": temperature,
        "seed": stream,
        "ignore_eos": True,
    }


async def stream(service: AsyncService, number: int, has_begun: asyncio.Event) -> list[int]:
    prompt = [(number * 31 + i * i) % 199 for i in range(60)]
    tokens: list[int] = []
    async for output in service.generate(prompt, {**params(number), "output_kind": "delta"}):
        tokens += output.outputs[0].token_ids
        if len(tokens) > 10:
            has_begun.set()
    return tokens


async def all_streams(service: AsyncService, kill: Any = None) -> list[list[int]]:
    begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(stream(service, number, each)) for number, each in enumerate(begun)
    ]
    if kill is not None:
        await asyncio.gather(*(each.wait() for each in begun))
        await asyncio.to_thread(kill)
    return await asyncio.gather(*tasks)


def kill_engine(name: str) -> None:
    """End every process of an engine at once, its Supervisor first."""
    supervisor = find_supervisor(name)
    health = ray.get(supervisor.health.remote())
    pids = [ray.get(supervisor.__ray_call__.remote(lambda _: os.getpid()))]
    pids += [each["pid"] for each in health.values()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.part
async def test_streams_go_on_when_every_process_of_an_engine_is_killed(
    names: tuple[str, str], doomed: str
) -> None:
    async with await AsyncService.connect([*names, doomed]) as service:
        expected = await all_streams(service)
        assert await all_streams(service, lambda: kill_engine(doomed)) == expected
        stats = await service.stats()
        assert [stats[name] is None for name in (*names, doomed)] == [False, False, True]
        assert await all_streams(service) == expected


async def test_an_ingress_serves_http_for_all_engines(names: tuple[str, str]) -> None:
    command = [sys.executable, "-m", "raydix", "ingress", *names, "--http", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            url = await asyncio.to_thread(ready_url, process)
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
                body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}
                answers = [
                    await http.post("/v1/completions", json={**body, "session_id": f"s{number}"})
                    for number in range(16)
                ]
                metrics = (await http.get("/metrics")).text
                bad = await http.post("/v1/completions", json={**body, "prompt": []})
        finally:
            process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, WAIT_S) == 0

    assert [answer.status_code for answer in answers] == [200] * 16
    assert bad.status_code == 400
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
    for name in names:
        assert f'engine="{name}"' in metrics


def ready_url(process: subprocess.Popen[str]) -> str:
    """What it says on the console until it listens."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "HTTP is ready at " in line:
            return line.partition("HTTP is ready at ")[2].split("/v1")[0]
    raise AssertionError("".join(said))
