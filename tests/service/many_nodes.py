"""A Ray cluster of several nodes, and services on it: processes of their own, reached by HTTP."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import find_record

ROOT = Path(__file__).parents[2]
WAIT_S = 240.0
"""The time for what must come; nothing is measured by it."""
NUM_TOKENS = 120


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


class ManyNodes:
    """A running cluster, whose head is one of its nodes."""

    def __init__(self, folder: str, *address: str) -> None:
        """`address`: that of the head, unless it is Ray's own choice."""
        command = [sys.executable, "-m", "tests.service.cluster_process", folder, *address]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            cwd=ROOT,
            text=True,
        )
        self.address, self.head = self._answer().split()
        self.living = {self.head}

    def add(self) -> str:
        """Start one more node; returns its id."""
        node = self._order("add")
        self.living.add(node)
        return node

    def kill_raylet(self, node: str) -> None:
        """SIGKILL of a node's raylet, which all processes on it notice and end."""
        assert self._order(f"kill_raylet {node}") == "killed"
        self.living.remove(node)

    def kill(self, node: str) -> None:
        """SIGKILL of a node's raylet and of all processes on it at once."""
        assert self._order(f"kill {node}") == "killed"
        self.living.remove(node)

    def ingresses(self) -> list[int]:
        """The processes of Ray Serve on the head that speak HTTP for a service."""
        return [int(pid) for pid in self._order("ingresses").split()]

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _order(self, order: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the cluster has ended"
        return line


@contextlib.contextmanager
def many_nodes(*address: str) -> Iterator[ManyNodes]:
    with tempfile.TemporaryDirectory(prefix="rn-", dir="/tmp", ignore_cleanup_errors=True) as path:
        nodes = ManyNodes(path, *address)
        try:
            yield nodes
        finally:
            nodes.stop()


class Served:
    """`raydix serve --nodes` in a process of its own."""

    def __init__(self, name: str, arguments: tuple[str, ...], *own: str) -> None:
        """`arguments`: those that its versions have in common."""
        self.name = name
        self.arguments = arguments
        self.log: list[str] = []
        command = [sys.executable, "-m", "raydix", "serve", "--name", name, *arguments, *own]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)

    async def says(self, text: str) -> str:
        """The first line of its log with this text, once it is there."""
        async with asyncio.timeout(WAIT_S):
            while not (found := [line for line in self.log if text in line]):
                assert self.process.poll() is None, "".join(self.log)
                await asyncio.sleep(0.05)
        return found[0]

    async def url(self) -> str:
        """Where HTTP is, once it is ready."""
        line = await self.says("HTTP is ready at ")
        return line.partition("HTTP is ready at ")[2].split("/v1")[0]

    async def ended(self) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.to_thread(self.process.wait, WAIT_S)

    async def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert await self.ended() == 0, "".join(self.log)


async def engines_of(name: str) -> dict[str, str]:
    """The engines of a service that serve, and the node of each."""
    record = find_record(name)
    if record is None:
        return {}
    try:
        described = await call_supervisor(name, record, "describe_service")
    except EngineDead:
        # This version has just made way for a later one.
        return {}
    return {one["name"]: one["node"] for one in described["engines"] if one["state"] == "serves"}


async def actors_of(engine: str) -> dict[str, int]:
    """The processes of an engine's actors, once all of them serve."""
    record = find_record(engine)
    assert record is not None, f"{engine} is not there"
    await call_supervisor(engine, record, "wait_all_serving")
    health = await call_supervisor(engine, record, "health")
    return {actor: each["pid"] for actor, each in health.items()}


async def until_serving(name: str, num_engines: int, without: str | None = None) -> dict[str, str]:
    """The engines that serve, once they are so many and none of them is on the node `without`."""
    async with asyncio.timeout(WAIT_S):
        while True:
            engines = await engines_of(name)
            if len(engines) == num_engines and without not in engines.values():
                return engines
            await asyncio.sleep(0.1)


def body_of(number: int, **fields: Any) -> dict[str, Any]:
    """What a stream asks for; half of them are sampled."""
    return {
        "prompt": [(number * 37 + place * place) % 199 for place in range(200)],
        "max_tokens": NUM_TOKENS,
        "temperature": number % 2,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **fields,
    }


async def events(
    http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str] | None = None
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream; fails if it is refused, breaks, tells an error or is cut.

    The headers of the answer go into `headers`.
    """
    is_whole = False
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        if headers is not None:
            headers.update(answer.headers)
        async for line in answer.aiter_lines():
            is_whole = line == "data: [DONE]"
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                yield event
                is_whole = False
            elif is_whole:
                break
    assert is_whole, "the stream was cut"


class Stream:
    """One stream, and what has come of it."""

    def __init__(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        self.tokens: list[int] = []
        self.cached_tokens = 0
        self.prompt_tokens = 0
        self.longest_gap_s = 0.0
        """The longest time from one token, or from the request, to the next token."""
        self.headers: dict[str, str] = {}
        self.has_begun = asyncio.Event()
        self.reading = asyncio.create_task(self._read(http, body))

    def is_at(self, engine: str) -> bool:
        """Whether it went to this engine first."""
        return f"engine={engine}," in self.headers["x-raydix-routing"]

    async def _read(self, http: httpx.AsyncClient, body: dict[str, Any]) -> list[int]:
        last_s = time.monotonic()
        async for event in events(http, body, self.headers):
            num_tokens = len(self.tokens)
            for choice in event["choices"]:
                self.tokens += choice.get("token_ids") or []
            if len(self.tokens) > num_tokens:
                last_s, before_s = time.monotonic(), last_s
                self.longest_gap_s = max(self.longest_gap_s, last_s - before_s)
            if len(self.tokens) > 10:
                self.has_begun.set()
            if event.get("usage"):
                self.prompt_tokens = event["usage"]["prompt_tokens"]
                self.cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert len(self.tokens) == body["max_tokens"]
        return self.tokens


class Load:
    """Streams without an end, each of which asks again once it has its answer; none may fail."""

    def __init__(self, http: httpx.AsyncClient, num_streams: int) -> None:
        self._http = http
        self._is_over = False
        self._hits: list[list[tuple[int, int]]] = [[]]
        """Cached and all tokens of each prompt, before each mark and after the last one."""
        self._asking = [asyncio.create_task(self._ask(number)) for number in range(num_streams)]

    async def _ask(self, number: int) -> None:
        while not self._is_over:
            stream = Stream(self._http, body_of(number, max_tokens=40))
            await stream.reading
            self._hits[-1].append((stream.cached_tokens, stream.prompt_tokens))

    def mark(self) -> None:
        """Count apart what comes from now on."""
        self._hits.append([])

    async def asked(self, num_answers: int) -> None:
        """Return once so many answers more have come."""
        wanted = sum(map(len, self._hits)) + num_answers
        async with asyncio.timeout(WAIT_S):
            while sum(map(len, self._hits)) < wanted:
                for each in self._asking:
                    assert not each.done(), each.result()
                await asyncio.sleep(0.05)

    async def stop(self) -> list[float]:
        """Let streams end; the part of the prompts that was cached, before each mark and after."""
        self._is_over = True
        await asyncio.gather(*self._asking)
        return [
            sum(cached for cached, _ in hits) / max(1, sum(every for _, every in hits))
            for hits in self._hits
        ]


def client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=WAIT_S, limits=limits)
