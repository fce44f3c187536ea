"""Ports of a configuration: which collide, and which only look alike."""

from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.loading import load_config


def named(**sections: Any) -> list[str]:
    config = load_config({"model": {"path": "unused"}, **sections})
    return [str(each) for each in config.named_ports]


EVENTS: dict[str, Any] = {"host": "127.0.0.1", "port": 7000, "replay_port": 8000}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"cache": {"events": {**EVENTS, "replay_port": 7000}}}, "takes port 7000, and"),
        # Ranks have ports in a row.
        (
            {"cache": {"events": {**EVENTS, "replay_port": 7001}}, "parallel": {"dp": 2}},
            "takes ports 7000 to 7001, and cache.events.replay_port takes ports 7001 to 7002",
        ),
        ({"cache": {"events": EVENTS}, "ray": {"metrics_port": 8000}}, "ray.metrics_port takes"),
        ({"ray": {"metrics_port": 8000, "dashboard_port": 8000}}, "ray.dashboard_port takes"),
        # Pages come by the port behind that of the questions.
        (
            {"cache": {"l2": {"ratio": 4.0, "pull": {"port": 6999}}, "events": EVENTS}},
            "cache.l2.pull.port takes ports 6999 to 7000",
        ),
    ],
)
def test_two_settings_with_one_port_are_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        named(**sections)


def test_ports_that_differ_or_are_free_or_at_other_addresses_are_taken() -> None:
    assert named() == []
    assert named(cache={"events": {**EVENTS, "port": 0, "replay_port": 0}}) == []
    assert len(named(cache={"events": {**EVENTS, "replay_port": 7001}})) == 2
    pull = {"ratio": 4.0, "pull": {"host": "10.0.0.7", "port": 7000}}
    assert len(named(cache={"l2": pull, "events": EVENTS})) == 3
