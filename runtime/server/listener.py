"""An application on a port, in this process."""

import asyncio
import contextlib
import gc
import random
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.api.freed_memory import give_back_memory
from raydix.runtime.server.bounded_http import BoundedHttp
from raydix.runtime.server.ebb import Ebb
from raydix.runtime.server.swell import Swell, resident_bytes

_BACKLOG = 2048
_FREE_PORTS = range(20_000, 30_000)
"""Ports that nothing takes by itself between the look and the use, where nobody has changed these
ranges: they are above those of Ray's workers, and below those of Ray Serve's replicas and of
Linux's outgoing connections.
"""
_MOST_LOOKS = 100
_LOOK_S = 5.0
"""The interval at which connections are counted, and memory is looked at."""
_KEEP_ALIVE_S = 620
"""The time for which an idle connection is kept, longer than clients and load balancers keep
theirs: the server must not be the first to close, as a request may be on its way. With uvicorn's 5
s AIPerf lost 8 of 500.
"""


class _Server(uvicorn.Server):
    """Leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to others, where uvicorn would handle them."""
        yield


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, address: TcpAddress, drain_s: float) -> AsyncIterator[str]:
    """Serve the application meanwhile; yields its URL.

    At the end no connection is taken any more, and streams may go on for `drain_s` before they
    are cut. Raises ConfigError if the port cannot be had.
    """
    listener = bind(address)
    config = uvicorn.Config(
        _ended_quietly(app),
        # It would close every handler that there is; who serves has set up its own.
        log_config=None,
        # It would warn of each connection that speaks no HTTP, or another version of it.
        log_level="error",
        access_log=False,
        lifespan="off",
        # Nothing depends on where a request comes from.
        proxy_headers=False,
        http=BoundedHttp,
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listener]), name="raydix-http")
    tidying = asyncio.create_task(_tidy_up(server), name="raydix-http-memory")
    try:
        yield url_of(_bound_address(listener))
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)
        server.should_exit = True
        await serving


async def _tidy_up(server: _Server) -> None:
    """Give back the memory of connections once many have closed, and that of long texts."""
    ebb, swell = Ebb(), Swell(resident_bytes())
    while True:
        await asyncio.sleep(_LOOK_S)
        have_closed = ebb.is_over(len(server.server_state.connections))
        if have_closed:
            # asyncio's transports refer to themselves.
            gc.collect()

        if swell.is_over(resident_bytes()) or have_closed:
            await asyncio.to_thread(give_back_memory)
            swell.begin_anew(resident_bytes())


def url_of(address: TcpAddress) -> str:
    """The URL of an address, as clients write it."""
    return f"http://{address.host_port}"


def free_port(address: TcpAddress) -> int:
    """The address's port, or for port 0 one that is likely to stay free until somebody binds it.

    Raises ConfigError if it cannot be had.
    """
    ports = [address.port]
    if not address.port:
        # Not by the generator of the process, which others may have seeded alike.
        ports = random.SystemRandom().sample(_FREE_PORTS, _MOST_LOOKS)
    *others, last = ports
    for port in others:
        with contextlib.suppress(ConfigError):
            return _port_of(TcpAddress(address.host, port))
    return _port_of(TcpAddress(address.host, last))


def _port_of(address: TcpAddress) -> int:
    with bind(address) as listener:
        return _bound_address(listener).port


def _ended_quietly(app: ASGIApp) -> ASGIApp:
    """The application, from which a request that is cut just returns."""

    async def cut(scope: Scope, receive: Receive, send: Send) -> None:
        # The server cancels what outlasts the drain, and would log a traceback for each.
        with contextlib.suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return cut


def bind(address: TcpAddress) -> socket.socket:
    """Listen there. Raises ConfigError if that cannot be."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"--http cannot listen at {address.host}:{address.port} ({error.strerror or error}). "
            "Choose another port, or stop who has it."
        ) from error


def _bound_address(listener: socket.socket) -> TcpAddress:
    host, port = listener.getsockname()[:2]
    return TcpAddress(host, port)
