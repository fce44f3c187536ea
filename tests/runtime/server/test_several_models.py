"""Several models behind one address, each an engine of its own in this process."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from raydix.errors import EngineAsleep, EngineDead
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.api.tokenizer import load_tokenizer
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.config.loading import load_config
from raydix.runtime.server.app import build_app
from raydix.runtime.server.engine import ServedEngine
from raydix.runtime.server.listener import listening
from raydix.runtime.server.served import Served
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.llm import InProcessLLM
from tests.runtime.server.served_engine import ADMIN, ALICE, BOB, MONITOR, PAGE_SIZE, engine_keys

NAMES = ("chat", "code")
PROMPT = list(range(40))


@dataclass(frozen=True)
class Two:
    """A server of two models, and the engine behind each."""

    url: str
    llms: dict[str, InProcessLLM]

    def http(self, key: str = ALICE) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, verify=False)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with contextlib.AsyncExitStack() as stack:
        llms = {}
        for seed, name in enumerate(NAMES):
            write_demo_checkpoint(tmp_path / name, seed=seed)
            cache = {"l1": {"num_pages": 64}, "l2": None, "page_size": PAGE_SIZE}
            model = {"path": str(tmp_path / name), "max_model_len": 128 + seed}
            engine = await stack.enter_async_context(
                in_process_engine(load_config({"model": model, "cache": cache}))
            )
            tokenizer = load_tokenizer(tmp_path / name)
            llms[name] = InProcessLLM(engine, await engine.connect(tokenizer))
        app = build_app(llms, engine_keys())
        listens = listening(app, TcpAddress("127.0.0.1", 0), 1.0)
        yield Two(await stack.enter_async_context(listens), llms)


def body(**fields: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 6, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    return {"prompt": PROMPT, **sampling, **fields}


async def direct(llm: InProcessLLM) -> list[int]:
    """What the model itself answers."""
    params = {"max_tokens": 6, "temperature": 0.0, "output_kind": "final", "ignore_eos": True}
    [output] = [each async for each in llm.generate(PROMPT, params)]
    return list(output.outputs[0].token_ids)


async def test_the_field_model_picks_the_engine(two: Two) -> None:
    expected = {name: await direct(llm) for name, llm in two.llms.items()}
    assert len({tuple(tokens) for tokens in expected.values()}) == len(NAMES)
    async with two.http() as http:
        for name in (*NAMES, *NAMES):
            answer = (await http.post("/v1/completions", json=body(model=name))).json()
            assert answer["model"] == name
            assert answer["choices"][0]["token_ids"] == expected[name]


async def test_an_unknown_or_missing_model_is_answered_with_those_that_there_are(two: Two) -> None:
    async with two.http() as http:
        unknown = await http.post("/v1/completions", json=body(model="other"))
        missing = await http.post("/v1/completions", json=body())
        described = await http.get("/v1/models/other")
        tokenized = await http.post("/tokenize", json={"model": "other", "prompt": "a"})
    assert unknown.status_code == described.status_code == tokenized.status_code == 404
    error = unknown.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'other' is not served here; expected one of 'chat', 'code'" in error["message"]
    assert missing.status_code == 400
    assert missing.json()["error"]["param"] == "model"
    assert "expected one of 'chat', 'code'" in missing.json()["error"]["message"]


async def test_all_models_are_listed_each_with_its_own_bounds(two: Two) -> None:
    async with two.http() as http:
        listed = (await http.get("/v1/models")).json()["data"]
        one = (await http.get("/v1/models/code")).json()
        ready = (await http.get("/ready")).json()
    assert [(each["id"], each["max_model_len"]) for each in listed] == [
        ("chat", 128),
        ("code", 129),
    ]
    assert one == listed[1]
    assert ready == {"status": "ready", "models": list(NAMES)}


async def test_a_model_that_sleeps_is_left_out_of_those_that_are_ready(two: Two) -> None:
    async with two.http(ADMIN) as http:
        assert (await http.post("/admin/sleep", json={})).status_code == 400
        assert (await http.post("/admin/sleep", json={"model": "chat"})).status_code == 200
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()["models"]) == (200, ["code"])
        phases = [(await http.get("/admin/phase", params={"model": each})).json() for each in NAMES]
        assert phases == [{"in-process": "asleep"}, {"in-process": "awake"}]
        assert (await http.post("/admin/sleep", json={"model": "code"})).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        for name in NAMES:
            assert (await http.post("/admin/wake", json={"model": name})).status_code == 200
        assert (await http.get("/ready")).json()["models"] == list(NAMES)


async def test_keys_hold_for_every_model_and_tenants_share_nothing_in_any(two: Two) -> None:
    async with two.http("nobody-has-this-key") as http:
        for name in NAMES:
            assert (await http.post("/v1/completions", json=body(model=name))).status_code == 401
    cached = {}
    for key in (ALICE, BOB, ALICE):
        async with two.http(key) as http:
            for name in NAMES:
                answer = (await http.post("/v1/completions", json=body(model=name))).json()
                cached[name, key] = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    for name in NAMES:
        assert cached[name, BOB] == 0
        assert cached[name, ALICE] == 32, "Alice has asked it before"


async def test_admin_and_monitor_see_every_model(two: Two) -> None:
    async with two.http(ADMIN) as http:
        assert (await http.get("/admin/cache/stats")).status_code == 400
        for name in NAMES:
            stats = await http.get("/admin/cache/stats", params={"model": name})
            flushed = await http.post("/admin/cache/flush", json={"model": name})
            assert stats.status_code == flushed.status_code == 200
        unknown = await http.post("/admin/cache/flush", json={"model": "other"})
        assert unknown.status_code == 404
    async with two.http(MONITOR) as http:
        assert "raydix_time_to_first_token_seconds" in (await http.get("/metrics")).text
    async with two.http() as http:
        hint = {"session_id": "s", "retention": {"end": True}}
        assert (await http.post("/v1/sessions/retention", json=hint)).status_code == 202
        assert (await http.get("/cache/pins")).json() == {"pins": []}


def models(**answers: object) -> ServedModels:
    """Models whose engines answer so, or are away."""
    engines = {name: SimpleNamespace(answer=answer) for name, answer in answers.items()}
    return ServedModels(cast("dict[str, ServedEngine]", engines))


async def ask(served: Served) -> object:
    answer = cast("Any", served.engine).answer
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_a_model_whose_engines_are_away_hides_no_other() -> None:
    gone, other = EngineDead("gone"), ValueError("wrong")
    assert await models(a=1, b=gone).ask_all(ask) == {"a": 1, "b": None}
    asleep = EngineAsleep("asleep")
    assert await models(a=asleep, b=2, c=gone).ask_all(ask) == {"a": None, "b": 2, "c": None}
    with pytest.raises(EngineDead, match="gone"):
        await models(a=gone, b=gone).ask_all(ask)
    with pytest.raises(ValueError, match="wrong"):
        await models(a=1, b=gone, c=other).ask_all(ask)


async def test_a_query_names_the_model_of_a_body_too(two: Two) -> None:
    async with two.http(ADMIN) as http:
        for path in ("/admin/sleep", "/admin/wake", "/admin/cache/flush"):
            nobody = await http.post(path, params={"model": "nobody"}, json={})
            assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "model_not_found")
            both = await http.post(path, params={"model": "chat"}, json={"model": "code"})
            assert (both.status_code, both.json()["error"]["param"]) == (400, "model")
        flushed = await http.post("/admin/cache/flush", params={"model": "chat"}, json={})
        assert flushed.status_code == 200
