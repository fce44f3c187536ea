"""Who may do what with several engines of one node, and what one tenant learns of another: nothing.

Real actors on the cpu on one Ray cluster: two engines share an L2, over an L3 of files. The tests
of this file follow each other on the same engines; the last ones change their storage.
"""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import zmq
import zmq.asyncio
import zmq.auth
from fastapi.routing import APIRoute
from starlette.routing import Route
from zmq.utils.monitor import recv_monitor_message

from raydix.runtime.actors.bootstrap.control_client import call_l2
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.links.link import LinkClosed, LinkRefused
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.cli import status
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import replace_l3
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.server.app import build_app
from tests.runtime.server.served_engine import ADMIN, ALICE, BOB, MODEL, MONITOR
from tests.runtime.server.test_access import KNOWN, ROLES, ROUTES
from tests.service.guarded import (
    CACHEABLE,
    PAGE_SIZE,
    PATIENCE_S,
    PROMPT_TOKENS,
    Service,
    http,
    listeners,
    prompt,
    service,
    settle,
    url,
)
from tests.service.replayed import in_the_middle, replay

__all__ = ["service", "url"]
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

SALT = "a-word-that-alice-keeps-to-herself"
PASSWORD = "the-password-of-a-redis"


# Tenants


async def sources(handle: EngineHandle, seed: int, salt: str) -> dict[str, int]:
    """Where an engine had the tokens of a prompt from, for requests of a salt."""
    sampling = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}
    async with await AsyncLLM.connect(handle.name) as client:
        async for output in client.generate(prompt(seed), sampling, cache_salt=salt):
            last = output
    return dict(last.metrics.cached_tokens_by_source)


def num_cached(found: dict[str, int]) -> int:
    return sum(number for name, number in found.items() if not name.startswith("computed:"))


@pytest.mark.parametrize(("tier", "seed"), [("l1", 1), ("l2", 2), ("l3", 3)])
async def test_no_tier_gives_a_tenant_what_another_has_put_there(
    service: Service, tier: str, seed: int
) -> None:
    first, second = service.handles
    assert num_cached(await sources(first, seed, "alice/")) == 0
    await settle(service)
    if tier == "l3":
        for handle in service.handles:
            await handle.call("flush", False)
    where = first if tier == "l1" else second

    # Other tenants, other salts of the same one, and none: 0 tokens, in whatever tier they are.
    for salt in ("bob/", f"alice/{SALT}", "alice", "bob/alice/"):
        assert num_cached(await sources(where, seed, salt)) == 0
    assert (await sources(where, seed, "alice/")).get(tier, 0) >= CACHEABLE


async def work(service: Service, handle: EngineHandle, seed: int) -> dict[str, int]:
    """What is done for another tenant's request: by the answer, and by all figures that grow."""
    before = counts_of(await settle(service), await handle.call("stats"))
    told = await sources(handle, seed, "bob/")
    after = counts_of(await settle(service), await handle.call("stats"))
    return told | {name: after[name] - before.get(name, 0) for name in after}


def counts_of(settled: dict[str, Any], stats: dict[str, Any]) -> dict[str, int]:
    """Counts of work on pages and prompts, which say where time goes."""
    names = ("loaded_pages", "promoted_pages", "backed_up_pages", "load_decisions")
    counts = {name: stats["scheduler"][name] for name in names}
    counts |= {name: settled["host"].get(name, 0) for name in ("pages_ready", "l3_reads_ok")}
    return counts | {
        name: number
        for name, number in stats["scheduler"].items()
        if name.startswith("prompt_tokens_computed")
    }


async def test_a_tenant_cannot_tell_what_another_has_by_what_is_done_for_it(
    service: Service,
) -> None:
    """The work is counted, not timed: a prompt that only others have costs what a new one does."""
    first, second = service.handles
    for handle, of_alice, of_nobody in ((first, 11, 12), (second, 13, 14)):
        await sources(first, of_alice, "alice/")
        known = await work(service, handle, of_alice)
        assert known == await work(service, handle, of_nobody), handle.name
        # The words of an answer, which name each reason once.
        computed = [number for name, number in known.items() if name.startswith("computed:")]
        assert sum(computed) == PROMPT_TOKENS


async def test_pins_and_sessions_of_a_tenant_are_nobody_elses(service: Service, url: str) -> None:
    body = {"token_ids": prompt(21), "keep_s": 60}
    generated = {"prompt": prompt(21), "max_tokens": 1, "session_id": "s"}
    async with http(url, ALICE) as alice, http(url, BOB) as bob:
        assert (await alice.post("/v1/completions", json=generated)).status_code == 200
        await settle(service)
        pinned = (await alice.post("/cache/pins", json={**body, "cache_salt": None})).json()
        assert pinned["pinned_tokens"] == CACHEABLE + PAGE_SIZE
        assert (await bob.post("/cache/pins", json=body)).json()["pin_id"] is None
        path = f"/cache/pins/{pinned['pin_id']}"
        assert (await bob.get("/cache/pins")).json() == {"pins": []}
        assert (await bob.delete(path)).status_code == 404
        shown = (await alice.get("/cache/pins")).json()["pins"]
        assert [each["pin_id"] for each in shown] == [pinned["pin_id"]]
        assert (await alice.delete(path)).status_code == 204


# Hellos


def a_hello(role: Role, **fields: Any) -> Hello:
    return Hello(role=role, name="somebody", incarnation=1, pid=1, **fields)


async def test_no_listener_takes_a_wrong_secret_or_a_hello_twice(
    service: Service, tmp_path: Path
) -> None:
    for name, (address, secret, role) in (await listeners(service)).items():
        wrong = bytes(len(secret))
        for bad in (wrong, secret[:-1], secret + b"x"):
            with pytest.raises(LinkRefused):
                await connect(address, a_hello(role), bad)

        folder = tmp_path / name
        folder.mkdir()
        async with in_the_middle(address, folder) as heard:
            link = await connect(heard.address, a_hello(role), secret)
            link.close()
        assert heard.said
        answer = await replay(address, bytes(heard.said))
        # It gets a challenge, as everybody does, and no more.
        assert answer[:4] == heard.answered[:4], name
        assert len(answer) == 4 + int.from_bytes(answer[:4], "little"), name
        assert answer != heard.answered[: len(answer)], "no challenge comes twice"


async def test_no_stream_of_pages_is_opened_by_a_guessed_ticket(service: Service) -> None:
    address, secret, _ = (await listeners(service))["pulls"]
    for ticket in (None, b"", bytes(16), bytes(32)):
        try:
            link = await connect(address, a_hello(Role.PAGE_STREAM, ticket=ticket), secret)
        except LinkRefused:
            continue
        with pytest.raises(LinkClosed):
            await link.receive()


async def test_events_are_told_to_no_stranger_and_no_recorded_hello_is_taken(
    service: Service, tmp_path: Path
) -> None:
    figures = (await service.handles[0].call("stats"))["events"]
    server, _ = zmq.auth.load_certificate(service.curve / "curve" / "server.key")

    async def outcome(endpoint: str, certificate: str | None) -> int:
        """How the handshake of a socket with these keys ends."""
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        if certificate is not None:
            path = service.curve / certificate
            socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(path)
            socket.curve_serverkey = server
        monitor = socket.get_monitor_socket()
        socket.connect(endpoint)
        ends = (
            zmq.EVENT_HANDSHAKE_SUCCEEDED,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        )
        async with asyncio.timeout(PATIENCE_S):
            while (event := (await recv_monitor_message(monitor))["event"]) not in ends:
                pass
        context.destroy(linger=0)
        return int(event)

    for endpoint in figures["replay_endpoints"]:
        assert await outcome(endpoint, "known.key_secret") == zmq.EVENT_HANDSHAKE_SUCCEEDED
        assert await outcome(endpoint, "stranger.key_secret") != zmq.EVENT_HANDSHAKE_SUCCEEDED
        assert await outcome(endpoint, None) != zmq.EVENT_HANDSHAKE_SUCCEEDED

        address = endpoint.replace("tcp://", "tcp:")
        async with in_the_middle(address, tmp_path) as heard:
            there = heard.address.replace("tcp:", "tcp://")
            assert await outcome(there, "known.key_secret") == zmq.EVENT_HANDSHAKE_SUCCEEDED
        answer = await replay(address, bytes(heard.said))
        assert len(answer) < len(heard.answered)


# Routes


def routes_of_the_application() -> list[tuple[str, str, str]]:
    """Every route of the application's own table: its method, its template, a path of it."""
    app = build_app({MODEL: None}, None)  # type: ignore[dict-item]
    assert all(isinstance(route, APIRoute | Route) for route in app.router.routes), (
        "a mount or websocket has an access of its own: add it here"
    )
    return [
        (method, route.path, re.sub(r"\{\w+(:path)?\}", "some", route.path))
        for route in app.router.routes
        if isinstance(route, APIRoute | Route)
        for method in sorted(route.methods or ())
    ]


EXPECTED = {
    (method, path.replace(MODEL, "some")): (allowed, body)
    for (method, path), (allowed, body) in ROUTES.items()
}


def test_every_route_has_an_expectation() -> None:
    """A new route is refused here until somebody says who may use it."""
    for method, template, path in routes_of_the_application():
        known = ("GET" if method == "HEAD" else method, path)
        assert known in EXPECTED, f"{method} {template} is new: who may? Add it to ROUTES"


async def test_each_route_of_engine_and_ingress_lets_in_those_whom_it_is_for(url: str) -> None:
    wrong = []
    routes = routes_of_the_application()
    for role, key in {**ROLES, "alice, cut": ALICE[:-1], "admin, longer": f"{ADMIN}x"}.items():
        # A key that is nearly one is a stranger's.
        known = role if role in ROLES else "stranger"
        refusal = 403 if role in KNOWN else 401
        async with http(url, key) as client:
            for method, _, path in routes:
                allowed, body = EXPECTED["GET" if method == "HEAD" else method, path]
                answer = await client.request(method, path, json=body)
                is_in = answer.status_code not in (401, 403)
                if is_in != (known in allowed) or not (is_in or answer.status_code == refusal):
                    wrong.append((method, path, role, answer.status_code))
                assert key is None or key not in answer.text
    assert wrong == []


# Secrets


@pytest.mark.parametrize("url", ["ingress"], indirect=True)
async def test_no_secret_is_told_anywhere(service: Service, url: str) -> None:
    told = [await provoked(url), await said_of_itself(service)]
    told.append("\n".join(service.log))
    folder = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    told += [path.read_bytes().decode("utf-8", "replace") for path in files]
    told += [
        path.read_bytes().decode("utf-8", "replace") for path in Path("/proc").glob("*/cmdline")
    ]

    found = {
        (name, shown[max(at - 200, 0) : at + 60])
        for name, secret in (await all_secrets(service)).items()
        for shown in told
        if (at := shown.find(secret)) >= 0
    }
    assert found == set()
    everything = "\n".join(told)
    for public in ("alice", service.handles[0].name, service.l2.name, "redis"):
        assert public in everything, "the search looks where things are told"


async def all_secrets(service: Service) -> dict[str, str]:
    """What nobody may read, in the forms in which it might be written."""
    secrets = {"alice's key": ALICE, "bob's key": BOB, "monitor": MONITOR, "admin": ADMIN}
    secrets |= {"salt": SALT, "password": PASSWORD}
    for name in ("curve/server", "known"):
        _, curve = zmq.auth.load_certificate(service.curve / f"{name}.key_secret")
        assert curve is not None
        secrets[f"CURVE of {name}"] = curve.decode()
    for name, (_, secret, _) in (await listeners(service)).items():
        forms = (secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1])
        secrets |= {f"{name} as {form[:4]}": form for form in forms}
    return secrets


async def provoked(url: str) -> str:
    """What HTTP answers to right and wrong requests which bring secrets."""
    kept = {"session_id": "s", "retention": {"keep_s": 60}, "cache_salt": SALT}
    generated = {"prompt": prompt(31), "max_tokens": 1}
    redis = f"redis://app:{PASSWORD}@127.0.0.1:9/0"
    asked = [
        (ALICE, "/v1/completions", generated | kept),
        (ALICE, "/cache/pins", {"token_ids": prompt(31), "cache_salt": SALT, "keep_s": 60}),
        (ALICE, "/v1/completions", generated | {"cache_salt": SALT * 1000}),
        (ALICE, "/v1/completions", generated | {"cache_salt": [SALT]}),
        (ALICE, "/v1/completions", generated | {"wrong": ALICE}),
        (ALICE, "/v1/completions", generated | {"model": SALT[:4], "user": SALT}),
        (f"{ALICE}{SALT}", "/v1/completions", generated),
        (ADMIN, "/admin/cache/attach", {"l3": {"backend": "redis", "url": redis}}),
        (ADMIN, "/admin/cache/attach", {"l3": {"backend": "redis", "url": f"{redis}?db=1"}}),
        (ADMIN, "/admin/cache/attach", {"l3": {"backend": "redis", "url": [redis]}}),
        (ADMIN, "/admin/cache/attach", {"l3": {"backend": "redis", "url": redis, "lazy": True}}),
    ]
    answers = []
    for key, path, body in asked:
        async with http(url, key) as client:
            answers.append((await client.post(path, json=body)).text)
    async with http(url, ADMIN) as client:
        answers += [(await client.get(each)).text for each in ("/admin/cache/stats", "/metrics")]
    async with http(url, ALICE) as client:
        answers.append((await client.get("/cache/pins")).text)
    assert "alice" in answers[-3], "what is kept is shown, and for whom"
    return "\n".join(answers)


async def said_of_itself(service: Service) -> str:
    """Figures, `raydix status`, and what is written of configurations and records."""
    engines, l2s = await status._look()
    with_redis = replaced_l3(service.config)
    said: list[Any] = [engines, l2s, service.l2, *service.handles, service.handles[0].record]
    said += [await call_l2(service.l2, "describe")]
    for handle in service.handles:
        said += [await handle.call(each) for each in ("stats", "health", "client_facts")]
    said += [service.config, with_redis, with_redis.model_dump_json(), with_redis.model_dump()]
    return "\n".join(map(repr, said))


def replaced_l3(config: EngineConfig) -> EngineConfig:
    l3 = {"backend": "redis", "url": f"redis://:{PASSWORD}@127.0.0.1:9/0", "lazy": True}
    return replace_l3(config, l3)
