"""Ray Serve's application, as `serve deploy` makes it: built here, not deployed."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from raydix.errors import ConfigError
from raydix.runtime.server.keys import Access, Caller, Verdict
from raydix.runtime.server.serve_environment import DEREGISTER_S, serve_environment
from tests.runtime.server.served_engine import ALICE, KEYS

pytest.importorskip("ray.serve", reason="needs pip install 'ray[serve]'")

from raydix.runtime.server.serve_app import ServeArguments, app


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.touch(0o600)
    path.write_text(yaml.safe_dump(KEYS))
    return path


def test_arguments_of_a_config_make_the_deployment(key_file: Path) -> None:
    arguments = ServeArguments.model_validate(
        {"engine": "mine", "keys": str(key_file), "num_replicas": 3, "drain_s": 20}
    )
    bound: Any = app(arguments)
    deployment = bound._bound_deployment
    engine, model_name, keys, log_path = deployment.init_args

    assert deployment.num_replicas == 3
    assert deployment._deployment_config.graceful_shutdown_timeout_s > DEREGISTER_S + 20
    assert (engine.name, engine.place.address, model_name) == ("mine", None, "mine")
    # It may run on another host than the engine.
    assert log_path is None
    assert isinstance(keys.judge(Access.TENANT, ALICE), Caller)
    assert keys.judge(Access.TENANT, None) is Verdict.NO_KEY


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
