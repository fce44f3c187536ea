"""What Ray is asked of nodes and engines, where it does not answer."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, RaySystemError, RpcError

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.service.ray_launcher import RayLauncher
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.config.policies import EngineRole

QUESTIONS: dict[str, Callable[[RayLauncher], Any]] = {
    "nodes": RayLauncher.nodes,
    "addresses": RayLauncher.addresses,
    "engines": RayLauncher.engines,
}


@pytest.fixture(params=[RpcError, RaySystemError, GetTimeoutError])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RayLauncher:
    """A launcher in a process of a cluster whose head does not answer."""

    def fail(**_: Any) -> Any:
        raise request.param("the head does not answer\nA paragraph")

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", fail)
    monkeypatch.setattr(ray.util, "list_named_actors", fail)
    return RayLauncher("prod", {}, Supervision(), Future())


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_ray_does_not_answer_is_engine_dead(launcher: RayLauncher, question: str) -> None:
    with pytest.raises(
        EngineDead, match=r"^Ray does not say .* service prod .* ray status"
    ) as told:
        QUESTIONS[question](launcher)
    assert "\n" not in str(told.value)


def test_a_start_during_which_ray_does_not_answer_has_failed(launcher: RayLauncher) -> None:
    with pytest.raises(RaydixError, match="engine prod/1"):
        launcher.start("prod/1", "a", EngineRole.BOTH, StartControl())
