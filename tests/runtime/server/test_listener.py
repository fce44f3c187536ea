"""Which port is free."""

import socket
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server import listener
from raydix.runtime.server.listener import bind, free_port

ANY_PORT = TcpAddress("127.0.0.1", 0)
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_OF_LINUX = 32_768


def test_a_free_port_is_none_that_an_outgoing_connection_may_be_given() -> None:
    first, last = map(int, OUTGOING.read_text().split())
    if first < FIRST_OF_LINUX:
        pytest.skip(f"this host gives outgoing connections ports from {first} on")
    assert not {free_port(ANY_PORT) for _ in range(50)} & set(range(first, last + 1))


def test_a_port_at_which_somebody_listens_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port(ANY_PORT)
    with bind(ANY_PORT) as taken:
        has = taken.getsockname()[1]
        monkeypatch.setattr(listener, "_FREE_PORTS", [has] * 98 + [free] + [has])
        assert free_port(ANY_PORT) == free
        monkeypatch.setattr(listener, "_FREE_PORTS", [has] * 100)
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{has}"):
            free_port(ANY_PORT)
        with pytest.raises(ConfigError, match="Choose another port"):
            free_port(TcpAddress("127.0.0.1", has))


def test_a_port_that_is_named_is_itself() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    assert free_port(TcpAddress("127.0.0.1", port)) == port
