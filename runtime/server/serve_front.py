"""Ray Serve on a private cluster, with HAProxy in front of the replicas."""

import asyncio
import contextlib
import http.client
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server.key_file import KeyFile
from raydix.runtime.server.keys import KeyJudge
from raydix.runtime.server.listener import free_port, url_of
from raydix.runtime.server.serve_app import Replicas, serve_name, used_by

logger = logging.getLogger(__name__)

_OURS = "raydix-"
"""What the names of applications begin with that Raydix starts; the name of the service follows."""
_HEAD = "node:__internal_head__"
"""What the head of a Ray cluster alone has."""
_START_S = 60.0
"""The time that Ray Serve itself gives its proxy."""
_POLL_S = 0.05
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@contextlib.asynccontextmanager
async def replicas_listening(
    name: str,
    replicas: Replicas,
    address: TcpAddress,
    is_followed: Callable[[], bool] = lambda: False,
) -> AsyncIterator[str]:
    """Run the replicas meanwhile, on the cluster that this process has joined; yields their URL.

    name: that of the service or engine, by which Ray Serve knows them. Those that run already, for
    an earlier version of a service, stay. At the end nothing new is taken, and streams may go on as
    long as `replicas` says; if `is_followed` says that a later version goes on, nothing ends.
    Raises ConfigError if the port cannot be had, or another service has got HTTP meanwhile, and
    EngineDead if Ray Serve does not start.
    """
    application = _application_of(name)
    here = address
    running = await asyncio.to_thread(_running)
    _check_is_alone(application, running)
    if not await asyncio.to_thread(_has_proxy):
        # HAProxy itself would try a port that is taken again and again.
        here = TcpAddress(address.host, free_port(address))
    if replicas.deployment_name not in running.get(application, ()):
        await asyncio.to_thread(_start, application, replicas, here)
    yield url_of(here)
    # Whoever leaves by an error has lost the engine: nothing can drain, and the cluster ends, too.
    if not is_followed():
        await asyncio.to_thread(_stop, application)


def file_read_by_replicas(keys: KeyJudge | None) -> Path | None:
    """The file of these keys, if replicas find it where they run, on the cluster's head."""
    if not isinstance(keys, KeyFile) or not _is_on_head():
        return None
    return keys.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The services for which HTTP is asked, beside those that there are."""

    name: str
    """What Ray Serve's application is to be named after."""
    services: frozenset[str]
    """The services that are to be served."""
    running: frozenset[str]
    """All services that run, earlier versions of these among them."""


def clear_for(address: TcpAddress, asked: Asked) -> None:
    """Raise ConfigError if services cannot be served there by this cluster's Ray Serve.

    What services that are gone have left there ends. To be called before anything starts: Ray Serve
    has one address, which it keeps, and one application there, so that a model that is served would
    lose its HTTP, or a later version have none when the earlier one has given way.
    """
    applications = _running()
    used = {name: _used_by_any(each) for name, each in applications.items()}
    _check_nobody_loses(address, asked, used)
    own = _application_of(asked.name)
    if _has_proxy() and not _listens(address):
        raise ConfigError(
            f"Nothing listens at {url_of(address)}, but this cluster's Ray Serve runs already, and "
            "keeps the address that it has been started with. Give --http as it was given then, or "
            "end Ray Serve first: `serve shutdown`."
        )
    for name in applications.keys() - {own}:
        _stop(name)


def _check_nobody_loses(
    address: TcpAddress, asked: Asked, used: Mapping[str, Collection[str]]
) -> None:
    """Raise ConfigError if a service that runs would lose its HTTP; used: by application."""
    own = {serve_name(each) for each in asked.services}
    running = {serve_name(each) for each in asked.running}
    for application, services in used.items():
        served = running.intersection(services)
        # The owner of another application ends it when it likes.
        losing = served - own if application == _application_of(asked.name) else served
        if not losing:
            continue
        if own.isdisjoint(served):
            raise ConfigError(
                f"This cluster's Ray Serve has HTTP for one service, and {_listed(losing)} runs. "
                "Leave out --http, or start this one on another cluster."
            )
        raise ConfigError(
            f"{url_of(address)} would serve {_listed(own)} alone, but this cluster's Ray Serve has "
            f"HTTP for {_listed(served)} together, each by its model. Leave out --http: what "
            "listens there goes on with the engines of the later version. Or give all these models."
        )


def _check_is_alone(application: str, running: Mapping[str, Collection[str]]) -> None:
    """Raise ConfigError if another application has HTTP since `clear_for` has looked.

    Two services may start at the same time, on one cluster: the later one would take it from the
    earlier one.
    """
    others = frozenset().union(
        *(_used_by_any(running[name]) for name in running.keys() - {application})
    )
    if others:
        raise ConfigError(
            f"This cluster's Ray Serve has HTTP for one service, and {_listed(others)} has got it "
            "meanwhile. Leave out --http, start this one on another cluster, or give both models "
            "to one raydix serve."
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _application_of(name: str) -> str:
    return _OURS + serve_name(name)


def _listens(address: TcpAddress) -> bool:
    host = _REACHED_AT.get(address.host, address.host)
    try:
        socket.create_connection((host, address.port), timeout=_START_S).close()
    except OSError:
        return False
    return True


def _running() -> Mapping[str, Collection[str]]:
    """The deployments of each application that Raydix has started and that runs."""
    applications = serve.status().applications.items()
    return {name: each.deployments for name, each in applications if name.startswith(_OURS)}


def _has_proxy() -> bool:
    """Whether this cluster's Ray Serve runs, also if only what it served has ended."""
    return bool(serve.status().proxies)


def _is_on_head() -> bool:
    """Whether this process has the files of the cluster's head."""
    here = ray.get_runtime_context().get_node_id()
    return any(node["NodeID"] == here and _HEAD in node["Resources"] for node in ray.nodes())


def _used_by_any(deployments: Collection[str]) -> frozenset[str]:
    return frozenset().union(*map(used_by, deployments))


def _start(name: str, replicas: Replicas, address: TcpAddress) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        _start_proxy(address)
        # Beside HAProxy: no other node's death ends a stream.
        application = replicas.application(num_cpus=0, resources={_HEAD: 0.001})
        serve.run(application, name=name, route_prefix="/")
    except (RuntimeError, TimeoutError, RayError) as error:
        raise EngineDead(f"Ray Serve does not start the HTTP replicas: {error}") from error
    _wait_for_proxy(address)


def _start_proxy(address: TcpAddress) -> None:
    """Start Ray Serve with its proxy, if it does not run yet."""
    options = {"host": address.host, "port": address.port}
    try:
        serve.start(proxy_location="HeadOnly", http_options=options)
    except RayActorError:
        # Ray Serve kills a proxy that is not ready after some 15 s, as on a busy host, and starts
        # another one. Who waited for the first is told of its death, and finds Ray Serve there.
        logger.warning("Ray Serve's proxy was not ready in time; it starts another one")
        serve.start(proxy_location="HeadOnly", http_options=options)


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


def _stop(name: str) -> None:
    serve.delete(name, _blocking=False)
    # Ray Serve itself kills what outlasts the drain.
    while name in serve.status().applications:
        time.sleep(_POLL_S)
