"""What `raydix serve` makes of several models, and of how many engines there are to be."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import ray

from raydix.errors import ConfigError
from raydix.runtime.actors.service import desk
from raydix.runtime.cli import service as services
from raydix.runtime.cli.http_front import model_names_of
from raydix.runtime.cli.service import require_one_cluster, rule_of, service_names
from raydix.runtime.cli.service_roles import (
    configs_by_role,
    require_possible_roles,
    warn_if_alone,
)
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import EngineRole, RoutingPolicyName


def test_times_of_a_rule_are_told_after_its_bounds() -> None:
    rule = rule_of(None, "1:4:0.5:300", 1)
    assert rule is not None
    assert (rule.fewest, rule.most, rule.wait_s, rule.idle_s) == (1, 4, 0.5, 300.0)


@pytest.mark.parametrize("text", ["3:1", "0:2", "1", "1:2:3", "1:2:-1:3", "1:2:nan:3", "1:2:1:inf"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--autoscale is '{text}'; expected MIN:MAX"):
        rule_of(None, text, 1)


def test_a_number_and_a_rule_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="Leave --nodes out to have"):
        rule_of(2, "1:4", 1)


def test_several_models_are_services_of_one_engine_each_unless_more_are_asked_for() -> None:
    assert rule_of(None, None, 1) is None
    rule = rule_of(None, None, 2)
    assert rule is not None
    assert (rule.fewest, rule.most) == (1, 1)
    more = rule_of(3, None, 2)
    assert more is not None
    assert more.fewest == 3


def test_services_are_called_after_their_models_where_there_are_several() -> None:
    assert service_names("prod", ["chat"]) == {"chat": "prod"}
    assert service_names("prod", ["a", "b"]) == {"a": "prod-a", "b": "prod-b"}
    assert service_names("prod", ["a b:c", "b"]) == {"a b:c": "prod-a-b-c", "b": "prod-b"}
    assert service_names("prod", ["org/a", "b"]) == {"org/a": "prod-org-a", "b": "prod-b"}
    with pytest.raises(ConfigError, match="other names by --model-name"):
        service_names("prod", ["org/a", "org-a"])
    with pytest.raises(
        ConfigError,
        match="the service of model 'a' is 'prod/x-a'; expected up to",
    ):
        service_names("prod/x", ["a", "b"])


def test_each_model_has_a_name_of_its_own() -> None:
    assert model_names_of([], ["/models/a", "ORG/b"]) == ("a", "ORG/b")
    assert model_names_of(["x", "y"], ["/a", "/b"]) == ("x", "y")
    with pytest.raises(ConfigError, match="given 1 times for 2 models"):
        model_names_of(["x"], ["/a", "/b"])
    with pytest.raises(ConfigError, match="Two models are called a"):
        model_names_of([], ["/1/a", "/2/a"])


def test_models_of_one_cluster_agree_on_it() -> None:
    one = load_config({"model": {"path": "/a"}})
    require_one_cluster([one, load_config({"model": {"path": "/b"}})])
    other = load_config({"model": {"path": "/b"}, "ray": {"metrics_port": 1234}})
    with pytest.raises(ConfigError, match="Let these sections be equal"):
        require_one_cluster([one, other])


def test_engines_for_prefill_have_the_configuration_of_the_others_but_for_their_role() -> None:
    cache = {"l2": {"bytes_per_node": "4MiB", "pull": {}}}
    config = load_config({"model": {"path": "/a"}, "role": "decode", "cache": cache})
    assert configs_by_role(config, None) == {EngineRole.DECODE: config}
    made = configs_by_role(config, 1)
    assert set(made) == {EngineRole.DECODE, EngineRole.PREFILL}
    assert made[EngineRole.DECODE] == config
    prefill = made[EngineRole.PREFILL]
    assert load_config(prefill, {"role": "decode"}) == config


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"role": "prefill"}, "none would go on"),
        ({}, "cache.l2.pull is not set"),
        ({"cache": {"l2": None}}, "cache.l2.pull is not set"),
        (
            {"cache": {"write_policy": "write_back", "l2": {"ratio": 2.0, "pull": {}}}},
            "for these engines: .*expected write_through",
        ),
    ],
)
def test_engines_for_prefill_that_could_hand_nothing_over_are_refused(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        configs_by_role(load_config({"model": {"path": "/a"}, **sections}), 1)


def test_somebody_has_to_go_on_with_what_engines_for_prefill_begin() -> None:
    kv = RoutingPolicyName.KV
    require_possible_roles(None, None, kv)
    require_possible_roles(1, rule_of(2, None, 1), kv)
    require_possible_roles(2, rule_of(None, "3:4", 1), kv)
    with pytest.raises(ConfigError, match="there is one engine"):
        require_possible_roles(1, None, kv)
    with pytest.raises(ConfigError, match="as few as 2 engines; expected is 3 of --nodes"):
        require_possible_roles(2, rule_of(None, "2:4", 1), kv)
    with pytest.raises(ConfigError, match="knows no roles; expected --routing kv"):
        require_possible_roles(1, rule_of(2, None, 1), RoutingPolicyName.SESSION)


def test_an_engine_whose_role_can_mean_nothing_is_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    base = load_config({"model": {"path": "/a"}})
    prefill = load_config(base, {"role": "prefill"})
    warn_if_alone(base, None)
    warn_if_alone(prefill, "head:6379")
    assert caplog.messages == []
    warn_if_alone(prefill, None)
    [told] = caplog.messages
    assert "role is prefill" in told
    assert "--address" in told


class ScriptedService:
    """A service that fails at once, or serves until it is stopped."""

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self.name, self._failure = name, failure
        self._over, self._stopped = asyncio.Event(), asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def run(self) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            await self._stopped.wait()
        finally:
            self._over.set()

    async def serving(self) -> None:
        if self._failure is not None:
            await asyncio.Event().wait()

    async def ended(self) -> None:
        await self._over.wait()

    def stop(self) -> None:
        self._stopped.set()


async def test_a_service_that_fails_beside_one_that_serves_is_told_before_http_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.asynccontextmanager
    async def answering(service: ScriptedService) -> AsyncIterator[None]:
        yield

    async def serve_until(*_: object) -> None:
        raise AssertionError("HTTP has been started")

    monkeypatch.setattr(desk, "answering", answering)
    monkeypatch.setattr(services, "_serve_until", serve_until)
    both: Any = {
        "good": ScriptedService("good"),
        "bad": ScriptedService("bad", ConfigError("cache.l2 of bad is another one.")),
    }
    options: Any = None
    with pytest.raises(ConfigError, match="of bad"):
        await services._keep_up(both, options, None)
