"""Ray Serve's application, as `serve deploy` makes it: built here, not deployed."""

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from raydix.errors import ConfigError
from raydix.runtime.actors.process import ProcessHandle
from raydix.runtime.api.service import AsyncService
from raydix.runtime.api.service_name import ServiceName
from raydix.runtime.server.key_file import KeyFile
from raydix.runtime.server.keys import Access, Caller, Verdict
from raydix.runtime.server.serve_environment import (
    DEREGISTER_S,
    haproxy_launcher,
    serve_environment,
)
from tests.runtime.server.served_engine import ALICE, KEYS

pytest.importorskip("ray.serve", reason="needs pip install 'ray[serve]'")

from raydix.runtime.config.policies import RoutingPolicyName
from raydix.runtime.server.serve_app import Replicas, ServeArguments, app


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.touch(0o600)
    path.write_text(yaml.safe_dump(KEYS))
    return path


def test_arguments_of_a_config_make_the_deployment(key_file: Path) -> None:
    arguments = ServeArguments.model_validate(
        {
            "engine": "mine",
            "keys": str(key_file),
            "num_replicas": 3,
            "drain_s": 20,
            "cors_origins": ["*"],
        }
    )
    bound: Any = app(arguments)
    deployment = bound._bound_deployment
    engines, keys, log_path, origins = deployment.init_args
    [(model_name, engine)] = engines.items()

    assert deployment.num_replicas == 3
    assert deployment._deployment_config.graceful_shutdown_timeout_s > DEREGISTER_S + 20
    assert (engine.name, engine.place.address, model_name) == ("mine", None, "mine")
    assert origins == ("*",)
    # It may run on another host than the engine.
    assert log_path is None
    assert isinstance(keys.judge(Access.TENANT, ALICE), Caller)
    assert keys.judge(Access.TENANT, None) is Verdict.NO_KEY


def test_a_service_is_named_in_place_of_an_engine(key_file: Path) -> None:
    arguments = {"service": "prod", "routing": "session", "keys": key_file}
    bound: Any = app(ServeArguments.model_validate(arguments))
    [(model_name, handle)] = bound._bound_deployment.init_args[0].items()
    assert isinstance(handle, AsyncService)
    assert pickle.loads(pickle.dumps(handle)).name == handle.name == model_name == "prod"
    assert handle.__reduce__()[1][-1] == "session"


@pytest.mark.parametrize("named", [{"service": "a b"}, {"models": {"chat": "a/1"}}])
def test_services_that_can_have_no_such_name_are_refused(
    key_file: Path, named: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="expected up to 100 letters, digits"):
        app(ServeArguments.model_validate({**named, "keys": key_file}))


def test_models_are_those_of_several_services(key_file: Path) -> None:
    arguments: dict[str, Any] = {"models": {"chat": "prod-a", "code": "prod-b"}, "keys": key_file}
    bound: Any = app(ServeArguments.model_validate(arguments))
    engines = bound._bound_deployment.init_args[0]
    assert {model: each.name for model, each in engines.items()} == arguments["models"]
    with pytest.raises(ConfigError, match="Leave out service and model_name"):
        app(ServeArguments.model_validate({**arguments, "service": "prod"}))


def test_replicas_that_do_the_same_have_one_name(key_file: Path) -> None:
    def name(**arguments: Any) -> str:
        bound: Any = app(ServeArguments(keys=key_file, **arguments))
        return str(bound._bound_deployment.name)

    assert name(service="prod") == name(service="prod", num_replicas=2)
    others = {name(service="other"), name(engine="prod")}
    others.add(name(service="prod", routing=RoutingPolicyName.ROUND_ROBIN))
    assert len({name(service="prod"), *others}) == 4


def test_replicas_that_read_a_file_of_keys_have_one_name_whatever_it_holds(key_file: Path) -> None:
    def name(path: Path | None) -> str:
        return Replicas(
            engines={"model": AsyncService(ServiceName("prod"))},
            keys=KeyFile(key_file),
            key_file=path,
            num_replicas=1,
            drain_s=5.0,
        ).deployment_name

    def names() -> tuple[str, str, str]:
        return name(key_file), name(key_file.with_suffix(".other")), name(None)

    before = names()
    assert len(set(before)) == 3
    assert names() == before

    key_file.write_text(f"tenants: {{alice: {ALICE}, carol: 0123456789abcdef-carol}}\n")
    own, other, carried = names()
    assert (own, other) == before[:2]
    # Nobody else would tell these replicas of the key.
    assert carried != before[2]


def test_keys_are_required_and_must_be_the_owners_alone(key_file: Path) -> None:
    with pytest.raises(ValidationError, match="keys"):
        ServeArguments.model_validate({"engine": "mine"})
    key_file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        app(ServeArguments(keys=key_file))


def test_haproxy_gets_files_and_ports_of_its_own() -> None:
    told = serve_environment("/private")
    assert told["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    files = [value for value in told.values() if value.startswith("/")]
    assert len(files) == len(set(files)) == 5
    assert all(value.startswith("/private") for value in files)
    ports = [value for name, value in told.items() if name.endswith("_PORT")]
    assert len(ports) == len(set(ports)) == 3


def test_haproxy_is_started_as_itself_from_a_path_with_blanks(tmp_path: Path) -> None:
    haproxy = tmp_path / "its own" / "haproxy"
    haproxy.parent.mkdir()
    haproxy.write_text('#!/bin/sh\necho "$@"\n')
    haproxy.chmod(0o700)
    [launcher] = haproxy_launcher(str(tmp_path), str(haproxy)).values()
    told = subprocess.run([launcher, "-f", "a file"], check=True, capture_output=True, text=True)
    assert told.stdout == "-f a file\n"


def test_haproxy_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    haproxy = tmp_path / "started"
    haproxy.write_text("#!/bin/sh\necho $$\nexec sleep 60\n")
    haproxy.chmod(0o700)
    [launcher] = haproxy_launcher(str(tmp_path), str(haproxy)).values()
    starter = f"import subprocess; subprocess.Popen(['{launcher}']); input()"
    with subprocess.Popen(
        [sys.executable, "-c", starter],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        launched = ProcessHandle(int(process.stdout.readline()))
        process.kill()
        asyncio.run(asyncio.wait_for(launched.wait(), 30))


def test_haproxy_is_started_by_ray_serve_alone_where_nothing_can_watch_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert haproxy_launcher(str(tmp_path), "/haproxy") == {}
