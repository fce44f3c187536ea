"""Sleep over HTTP: who may have an engine sleep, and what everybody hears meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.server.served_engine import ADMIN, ALICE, Server, engine_keys, serving

PROMPT = {"prompt": list(range(40)), "max_tokens": 6, "temperature": 0, "return_token_ids": True}
PROBES = ("/health", "/ready")


@pytest.fixture
async def patient(checkpoint: Path) -> AsyncIterator[Server]:
    """An engine at which requests wait for a wake."""
    async with serving(
        checkpoint, engine_keys(), cache={"l2": {"bytes_per_node": "8MiB"}}
    ) as server:
        yield server


async def probed(server: Server) -> list[int]:
    async with server.http(ALICE) as http:
        return [(await http.get(path)).status_code for path in PROBES]


async def post(server: Server, path: str, body: Any, key: str = ADMIN) -> Any:
    async with server.http(key) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def phase_of(server: Server) -> str:
    async with server.http(ADMIN) as http:
        phases = (await http.get("/admin/phase")).json()
    return str(phases[server.llm.name])


async def tokens_of(server: Server, **fields: Any) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of its prompt were found cached."""
    answer = await post(server, "/v1/completions", PROMPT | fields, ALICE)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["token_ids"], cached


@pytest.mark.parametrize("weights", [False, True])
async def test_an_engine_that_sleeps_is_healthy_and_not_ready(
    patient: Server, weights: bool
) -> None:
    expected, _ = await tokens_of(patient)
    assert await probed(patient) == [200, 200]

    slept = await post(patient, "/admin/sleep", {"weights": weights})
    assert slept["held_bytes"] > slept["left_bytes"]
    assert (slept["left_bytes"] == 0) == weights
    assert slept["lost_pages"] == 0
    assert await phase_of(patient) == "asleep"
    assert await probed(patient) == [200, 503]
    async with patient.http(ALICE) as http:
        refused = await http.get("/ready")
    assert refused.json()["error"]["code"] == "engine_asleep"
    assert "No engine of demo is awake (asleep)" in refused.json()["error"]["message"]
    assert refused.headers["Retry-After"] == "1"

    # What comes meanwhile waits, and finds in L2 what was cached.
    waiting = asyncio.create_task(tokens_of(patient))
    assert (await post(patient, "/admin/wake", {}))["seconds"] >= 0
    assert await waiting == (expected, 32)
    assert await phase_of(patient) == "awake"
    assert await probed(patient) == [200, 200]


async def test_an_engine_that_falls_asleep_is_not_ready_and_a_wake_calls_that_off(
    patient: Server,
) -> None:
    body = PROMPT | {"max_tokens": 200, "ignore_eos": True}
    running = asyncio.create_task(post(patient, "/v1/completions", body, ALICE))
    async with asyncio.timeout(60):
        while not (await patient.engine.stats())["scheduler"]["num_requests_running"]:
            await asyncio.sleep(0.01)

        async with patient.http(ADMIN) as http:
            sleeping = asyncio.create_task(http.post("/admin/sleep", json={}))
            while await phase_of(patient) == "awake":
                await asyncio.sleep(0.01)
            assert (await phase_of(patient)).startswith("falling asleep")
            assert await probed(patient) == [200, 503]
            await post(patient, "/admin/wake", {})
            called_off = await sleeping
        assert len((await running)["choices"][0]["token_ids"]) == 200
    assert called_off.status_code == 409
    assert called_off.json()["error"]["code"] == "called_off"
    assert "was woken while it fell asleep" in called_off.json()["error"]["message"]
    assert await probed(patient) == [200, 200]


async def test_requests_that_may_not_wait_hear_when_to_ask_again(checkpoint: Path) -> None:
    impatient = {"max_asleep_wait_s": 0.0}
    async with serving(checkpoint, engine_keys(), scheduler=impatient) as server:
        await post(server, "/admin/sleep", {})
        async with server.http(ALICE) as http:
            refused = await http.post("/v1/completions", json=PROMPT)
            streamed = await http.post("/v1/completions", json=PROMPT | {"stream": True})
        for answer in (refused, streamed):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_asleep"
            assert int(answer.headers["Retry-After"]) >= 1
        await post(server, "/admin/wake", {})
        assert len((await tokens_of(server))[0]) == 6


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/sleep", {"weights": "yes"}),
        ("/admin/sleep", {"weight": True}),
        ("/admin/sleep", []),
        ("/admin/wake", {"weights": True}),
    ],
)
async def test_wrong_bodies_are_refused_and_the_engine_stays_awake(
    patient: Server, path: str, body: Any
) -> None:
    async with patient.http(ADMIN) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
    assert await phase_of(patient) == "awake"


@pytest.mark.parametrize("path", ["/admin/sleep", "/admin/wake"])
async def test_the_only_model_is_not_taken_for_another_one(patient: Server, path: str) -> None:
    async with patient.http(ADMIN) as http:
        for answer in (
            await http.post(path, params={"model": "nobody"}, json={}),
            await http.post(path, json={"model": "nobody"}),
        ):
            assert answer.status_code == 404
            assert "expected 'demo'" in answer.json()["error"]["message"]
    assert await phase_of(patient) == "awake"
