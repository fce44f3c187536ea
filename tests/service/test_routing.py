"""An ingress of two engines sends requests where their prefixes are, each actor in its process."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.ray_cluster import own_name
from tests.service.test_service import ROOT, WAIT_S, kill_engine, ready_url, serving

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part]

PROMPT_TOKENS = 640


@pytest.fixture(scope="module")
def heavy_checkpoint() -> Iterator[Path]:
    """A model that takes long enough for its prompts that a cached one is worth something."""
    folder = Path(tempfile.mkdtemp(prefix="raydix-heavy-"))
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "head_dim": 64}
    yield make_checkpoint(folder, Family.QWEN3, seed=5, max_position_embeddings=2048, **sizes)
    shutil.rmtree(folder)


@pytest.fixture
def names(ray_cluster: PrivateCluster, heavy_checkpoint: Path) -> Iterator[tuple[str, str]]:
    """Two engines of one model."""
    names = own_name("left"), own_name("right")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(serving(name, heavy_checkpoint))
        yield names


@contextlib.asynccontextmanager
async def ingress_of(names: tuple[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an ingress, as it is started from the command line."""
    command = [sys.executable, "-m", "raydix", "ingress", *names, "--http", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            url = await asyncio.to_thread(ready_url, process)
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
                yield http
        finally:
            process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, WAIT_S) == 0


def prompt(seed: int, num_tokens: int = PROMPT_TOKENS) -> list[int]:
    return [(seed * 31 + i * i) % 199 for i in range(num_tokens)]


async def compute_at(name: str, *prompts: list[int]) -> None:
    """Have an engine compute prompts, which nobody has routed there."""
    async with await AsyncLLM.connect(name) as engine:
        for each in prompts:
            async for _ in engine.generate(each, {"max_tokens": 1, "temperature": 0.0}):
                pass


async def flush(name: str) -> None:
    async with await AsyncLLM.connect(name) as engine:
        await engine.flush()


async def known_pages(http: httpx.AsyncClient, name: str) -> float:
    metrics = (await http.get("/metrics")).text
    pattern = rf'raydix_routing_known_pages{{engine="{name}",replica="0"}} (\S+)'
    return float(re.findall(pattern, metrics)[0])


async def until_known(http: httpx.AsyncClient, name: str, *, least: int, most: int) -> None:
    """Wait until so many pages of an engine are known."""
    async with asyncio.timeout(WAIT_S):
        while not least <= await known_pages(http, name) <= most:
            await asyncio.sleep(0.02)


async def ask(http: httpx.AsyncClient, tokens: list[int]) -> dict[str, str]:
    """What the header says of where a request went."""
    body = {"prompt": tokens, "max_tokens": 2, "temperature": 0}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(part.split("=") for part in answer.headers["x-raydix-routing"].split(", "))


async def test_requests_follow_their_prefix_and_those_of_a_dead_engine_go_on(
    names: tuple[str, str],
) -> None:
    left, right = names
    # Both have learnt how long prompts take, short ones and long ones, and have none of them.
    sizes = [PROMPT_TOKENS, 20, PROMPT_TOKENS // 2, 40] * 3
    for name in names:
        await compute_at(name, *(prompt(100 + seed, size) for seed, size in enumerate(sizes)))
        await flush(name)

    async with ingress_of(names) as http:
        await compute_at(right, prompt(1))
        await until_known(http, right, least=PROMPT_TOKENS // 16, most=10**6)
        told = [await ask(http, prompt(1) + [7, number]) for number in range(4)]
        assert [each["engine"] for each in told] == [right] * 4, told
        assert all(int(each["l1"]) == PROMPT_TOKENS for each in told)

        # Where they were they are no more, and another engine has them.
        await flush(right)
        await until_known(http, right, least=0, most=0)
        await compute_at(left, prompt(1))
        await until_known(http, left, least=PROMPT_TOKENS // 16, most=10**6)
        moved = [await ask(http, prompt(1) + [8, number]) for number in range(4)]
        assert [each["engine"] for each in moved] == [left] * 4, moved

        begun = [asyncio.Event() for _ in range(8)]
        streams = [asyncio.create_task(stream(http, *each)) for each in enumerate(begun)]
        await asyncio.gather(*(each.wait() for each in begun))
        await asyncio.to_thread(kill_engine, left)
        assert await asyncio.gather(*streams) == [200] * 8
        after = [await ask(http, prompt(1) + [9, number]) for number in range(4)]
        assert [each["engine"] for each in after] == [right] * 4

        metrics = (await http.get("/metrics")).text
        assert await known_pages(http, left) == 0
        counts = re.findall(r"raydix_routing_(?:late|early)_seconds_count\S* (\S+)", metrics)
        assert sum(map(float, counts)) >= 12


async def stream(http: httpx.AsyncClient, number: int, has_begun: asyncio.Event) -> int:
    """How many tokens a stream brings, which says when it has begun."""
    body = {
        "prompt": prompt(20 + number, 40),
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    num_tokens = 0
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["x-raydix-routing"].startswith("engine=")
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                num_tokens += len(json.loads(line[6:])["choices"][0]["token_ids"])
                has_begun.set()
    return num_tokens
