from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress, parse_address


@pytest.mark.parametrize(
    "text", ["", "unix:", "tcp:host", "tcp:host:99999", "tcp::5", "file:/x", "unix:/" + "x" * 107]
)
def test_bad_addresses_are_config_errors(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


@pytest.mark.parametrize("text", ["unix:/tmp/a.sock", "tcp:127.0.0.1:80", "tcp:::1:80"])
def test_addresses_survive_the_round_trip(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "host", "is_loopback"),
    [
        ("127.0.0.1:8000", "127.0.0.1", True),
        ("localhost:8000", "localhost", True),
        ("[::1]:8000", "::1", True),
        (":8000", "0.0.0.0", False),
        ("0.0.0.0:8000", "0.0.0.0", False),
        ("somehost:8000", "somehost", False),
        ("[::]:8000", "::", False),
    ],
)
def test_addresses_beyond_loopback_are_known(text: str, host: str, is_loopback: bool) -> None:
    address = TcpAddress.parse(text)
    assert address == TcpAddress(host, 8000)
    assert address.is_loopback == is_loopback


@pytest.mark.parametrize("text", ["", "8000", "host:", "host:http", "host:70000", "host:-1", 8000])
def test_addresses_without_a_port_are_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        TcpAddress.parse(text)


def test_a_port_out_of_range_is_told_with_the_range() -> None:
    with pytest.raises(ConfigError, match=r"the port of 'localhost:99999' .* port of 0 to 65535"):
        TcpAddress.parse("localhost:99999")
    assert TcpAddress.parse("localhost:65535").port == 65535
