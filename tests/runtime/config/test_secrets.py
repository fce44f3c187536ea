"""No password of a configuration is shown, and all of them reach whom they are for."""

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.loading import apply_set, load_config, replace_l3
from raydix.runtime.config.values import WITH_SECRETS, without_passwords

SECRET = "correct-horse-battery"
URL = f"redis://app:{SECRET}@cache.example.org:6380/3"
SECTIONS = {
    "redis": {"backend": "redis", "url": URL},
    "plugin": {"backend": "plugin", "name": "mine", "options": {"token": SECRET, "n": 3}},
}


def config_with(section: Mapping[str, Any]) -> Any:
    return load_config({"model": {"path": "/m"}, "cache": {"l3": dict(section)}})


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_what_is_written_of_a_configuration_has_no_secret(section: Mapping[str, Any]) -> None:
    config = config_with(section)
    written = [
        repr(config),
        str(config.cache.l3),
        repr(config.model_dump()),
        json.dumps(config.model_dump(mode="json", exclude_unset=True)),
        config.model_dump_json(),
    ]
    assert [each for each in written if SECRET in each] == []
    assert all(section["backend"] in each for each in written)


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_secrets_reach_those_who_need_them(section: Mapping[str, Any]) -> None:
    config = config_with(section)
    own = config.cache.l3
    for other in (pickle.loads(pickle.dumps(config)), load_config(config), config_with(section)):
        assert other.cache.l3 == own
    assert replace_l3(config, section).cache.l3 == own
    assert type(own).model_validate_json(own.model_dump_json(context=WITH_SECRETS)) == own


def test_the_rest_of_a_url_is_shown() -> None:
    shown = config_with(SECTIONS["redis"]).model_dump()["cache"]["l3"]["url"]
    assert shown == "redis://...@cache.example.org:6380/3"
    assert without_passwords("redis://host:1/0, unix:///a@b") == "redis://host:1/0, unix:///a@b"


@pytest.mark.parametrize(
    "change",
    [
        {"url": [URL]},
        {"url": f"{URL}\0"},
        {"url": f"{URL}\ud800"},
        {"ttl_s": URL},
        {"port": URL},
    ],
)
def test_no_error_tells_a_password(change: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        config_with(SECTIONS["redis"] | dict(change))
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        apply_set({}, f"cache.l3={{url: {URL}")
    assert SECRET not in str(caught.value)
