"""Making backends from section `cache.l3`, plugins among them."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from pydantic import TypeAdapter

from raydix.errors import ConfigError
from raydix.runtime.config.l3 import L3Section, PluginL3Section
from raydix.runtime.storage.backends.fake import FakeBackend
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.backends.mooncake import MooncakeBackend
from raydix.runtime.storage.backends.redis import RedisBackend
from raydix.runtime.storage.create import _create_plugin, create_backend

SECTION: TypeAdapter[Any] = TypeAdapter(L3Section)


@pytest.mark.parametrize(
    ("values", "backend"),
    [
        ({"backend": "file", "path": "l3", "max_bytes": "1MiB"}, FileBackend),
        ({"backend": "fake", "seed": 1, "max_delay_s": 0.5}, FakeBackend),
        ({"backend": "redis", "url": "redis://:secret@cache:6380/2", "ttl_s": 60}, RedisBackend),
        ({"backend": "redis", "url": "unix:///run/redis.sock"}, RedisBackend),
        ({"backend": "mooncake", "protocol": "rdma", "segment_bytes": "1GiB"}, MooncakeBackend),
    ],
)
def test_backends_are_made_from_configuration(values: Mapping[str, object], backend: type) -> None:
    assert isinstance(create_backend(SECTION.validate_python(values)), backend)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:6379",
        "rediss://host",
        "redis://",
        "redis://host:port",
        "redis://host/main",
        "unix://x",
    ],
)
def test_bad_redis_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"cache\.l3\.url .* redis://"):
        create_backend(SECTION.validate_python({"backend": "redis", "url": url}))


POINTS = [
    EntryPoint("memory", "raydix.runtime.storage.backends.fake:FakeBackend", "raydix.storage"),
    EntryPoint("broken", "raydix.runtime.storage.no_such_module:Backend", "raydix.storage"),
]


def plugin(name: str, **options: object) -> PluginL3Section:
    return PluginL3Section(backend="plugin", name=name, options=options)


def test_plugin_is_called_with_its_options() -> None:
    backend = _create_plugin(plugin("memory", max_bytes=7), POINTS)
    assert backend.stats()["max_bytes"] == 7


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        (plugin("tape"), r"cache\.l3\.name is 'tape'.*broken, memory"),
        (plugin("broken"), "no_such_module"),
        (plugin("memory", speed=1), "speed"),
    ],
)
def test_plugin_that_cannot_be_made_is_a_config_error(
    section: PluginL3Section, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        _create_plugin(section, POINTS)


def test_plugin_that_is_not_installed_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"raydix\.storage"):
        create_backend(plugin("no-such-plugin"))
