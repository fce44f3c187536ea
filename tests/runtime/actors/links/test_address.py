import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import parse_address


@pytest.mark.parametrize(
    "text", ["", "unix:", "tcp:host", "tcp:host:99999", "tcp::5", "file:/x", "unix:/" + "x" * 107]
)
def test_bad_addresses_are_config_errors(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


@pytest.mark.parametrize("text", ["unix:/tmp/a.sock", "tcp:127.0.0.1:80", "tcp:::1:80"])
def test_addresses_survive_the_round_trip(text: str) -> None:
    assert str(parse_address(text)) == text
