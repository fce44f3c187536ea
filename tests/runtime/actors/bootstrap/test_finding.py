"""Finding an engine through a cluster that Ray plays."""

from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import GetTimeoutError

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap import launch
from raydix.runtime.actors.bootstrap.launch import find_engine


def test_a_supervisor_that_does_not_answer_holds_no_thread_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = SimpleNamespace(remote=lambda node: "asked")

    def get(reference: object, *, timeout: float | None = None) -> None:
        assert timeout is not None, "it would wait for ever"
        raise GetTimeoutError("Get timed out: some object(s) not ready.")

    monkeypatch.setattr(launch, "find_cluster", lambda address, name: None)
    monkeypatch.setattr(launch, "find_supervisor", lambda name: SimpleNamespace(facts=facts))
    monkeypatch.setattr(launch, "own_node", lambda: "node")
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(EngineDead, match="engine mine has not answered for 10 s"):
        find_engine("mine", "127.0.0.1:6379")
