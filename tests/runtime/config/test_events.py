import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.loading import load_config


def load(**events: object) -> object:
    return load_config({"model": {"path": "unused"}, "cache": {"events": events}}).cache.events


def test_nobody_is_told_by_default() -> None:
    assert load_config({"model": {"path": "unused"}}).cache.events is None
    assert load() is not None


def test_other_hosts_need_keys() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0, which other hosts can reach"):
        load(host="0.0.0.0")
    assert load(host="0.0.0.0", curve="/etc/raydix/keys") is not None
    assert load(host="::1") is not None


def test_a_host_is_an_address() -> None:
    with pytest.raises(ConfigError, match="expected an IP address"):
        load(host="localhost")


def test_keys_have_an_absolute_path() -> None:
    with pytest.raises(ConfigError, match="expected an absolute path"):
        load(curve="keys")
