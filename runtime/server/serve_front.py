"""Ray Serve on a private cluster, with HAProxy in front of the replicas."""

import asyncio
import contextlib
import http.client
import logging
import time
from collections.abc import AsyncIterator

from ray import serve
from ray.exceptions import RayError

from raydix.errors import EngineDead
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server.listener import free_port, url_of
from raydix.runtime.server.serve_app import Replicas

_APPLICATION = "raydix"
_START_S = 30.0
_POLL_S = 0.05
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@contextlib.asynccontextmanager
async def replicas_listening(replicas: Replicas, address: TcpAddress) -> AsyncIterator[str]:
    """Run the replicas meanwhile, on the cluster that this process has joined; yields their URL.

    At the end nothing new is taken, and streams may go on as long as `replicas` says. Raises
    ConfigError if the port cannot be had, EngineDead if Ray Serve does not start.
    """
    # HAProxy itself would try a port that is taken again and again.
    here = TcpAddress(address.host, free_port(address))
    await asyncio.to_thread(_start, replicas, here)
    yield url_of(here)
    # Whoever leaves by an error has lost the engine: nothing can drain, and the cluster ends, too.
    await asyncio.to_thread(_stop)


def _start(replicas: Replicas, address: TcpAddress) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        serve.start(http_options={"host": address.host, "port": address.port})
        # The cluster is this engine's alone: there is nobody to reserve a CPU from.
        application = replicas.application(num_cpus=0)
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
