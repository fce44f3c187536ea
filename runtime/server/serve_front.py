"""Ray Serve on a private cluster, with HAProxy in front of the replicas."""

import asyncio
import contextlib
import http.client
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection

from ray import serve
from ray.exceptions import RayError

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server.listener import free_port, url_of
from raydix.runtime.server.serve_app import Replicas

_APPLICATION = "raydix"
_HEAD = "node:__internal_head__"
"""What the head of a Ray cluster alone has."""
_START_S = 30.0
_POLL_S = 0.05
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@contextlib.asynccontextmanager
async def replicas_listening(
    replicas: Replicas, address: TcpAddress, is_followed: Callable[[], bool] = lambda: False
) -> AsyncIterator[str]:
    """Run the replicas meanwhile, on the cluster that this process has joined; yields their URL.

    Those that run already, for an earlier version of a service, stay. At the end nothing new is
    taken, and streams may go on as long as `replicas` says; if `is_followed` says that a later
    version goes on, nothing ends. Raises ConfigError if the port cannot be had, EngineDead if Ray
    Serve does not start.
    """
    here = address
    running = await asyncio.to_thread(_running)
    if not running:
        # HAProxy itself would try a port that is taken again and again.
        here = TcpAddress(address.host, free_port(address))
    if replicas.deployment_name not in running:
        await asyncio.to_thread(_start, replicas, here)
    yield url_of(here)
    # Whoever leaves by an error has lost the engine: nothing can drain, and the cluster ends, too.
    if not is_followed():
        await asyncio.to_thread(_stop)


def check_can_serve(address: TcpAddress, *, is_later: bool, others: Collection[str]) -> None:
    """Raise ConfigError if a service cannot be served there by this cluster's Ray Serve.

    is_later: whether it is a later version of one that runs; others: other services that run. To be
    told before anything starts: the replicas of a service replace those of another one, and Ray
    Serve keeps the address that it has started with, so that a later version would end with its
    HTTP when the earlier one has given way.
    """
    if not _running():
        return
    if not is_later and others:
        raise ConfigError(
            f"This cluster's Ray Serve has HTTP for one service, and {', '.join(sorted(others))} "
            "runs. Leave out --http, or start this one on another cluster."
        )
    if is_later and not _listens(address):
        raise ConfigError(
            f"Nothing listens at {url_of(address)}, but this cluster's Ray Serve serves the "
            "earlier version over HTTP, and keeps its address. Give --http as it was given then, "
            "or stop the service first."
        )


def _listens(address: TcpAddress) -> bool:
    host = _REACHED_AT.get(address.host, address.host)
    try:
        socket.create_connection((host, address.port), timeout=_START_S).close()
    except OSError:
        return False
    return True


def _running() -> Collection[str]:
    """The deployments of the application that runs; none without one."""
    application = serve.status().applications.get(_APPLICATION)
    return () if application is None else application.deployments


def _start(replicas: Replicas, address: TcpAddress) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": address.host, "port": address.port},
        )
        # Beside HAProxy: no other node's death ends a stream.
        application = replicas.application(num_cpus=0, resources={_HEAD: 0.001})
        serve.run(application, name=_APPLICATION, route_prefix="/")
    except (RuntimeError, TimeoutError, RayError) as error:
        raise EngineDead(f"Ray Serve does not start the HTTP replicas: {error}") from error
    _wait_for_proxy(address)


def _wait_for_proxy(address: TcpAddress) -> None:
    """HAProxy learns of the replicas a moment after they run."""
    give_up_s = time.monotonic() + _START_S
    while not _answers(address):
        if time.monotonic() > give_up_s:
            raise EngineDead(f"HAProxy does not answer at {url_of(address)} after {_START_S:g} s.")
        time.sleep(_POLL_S)


def _answers(address: TcpAddress) -> bool:
    # Whoever listens at every interface is reached at none of them in particular.
    host = _REACHED_AT.get(address.host, address.host)
    connection = http.client.HTTPConnection(host, address.port, timeout=_START_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def _stop() -> None:
    serve.delete(_APPLICATION, _blocking=False)
    # Ray Serve itself kills what outlasts the drain.
    while _APPLICATION in serve.status().applications:
        time.sleep(_POLL_S)
