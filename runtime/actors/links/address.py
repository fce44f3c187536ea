"""Addresses of listeners as they travel between actors: `unix:/path` or `tcp:host:port`."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Self

from raydix.errors import ConfigError

MAX_UNIX_PATH_BYTES = 107
MAX_PORT = 65535
_PROBE_S = 3
_NUM_PROBES = 3
"""Probes without an answer, after which a peer's host counts as gone."""
_NOTICE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _NUM_PROBES),
    # For what was sent and is not acknowledged: probes wait for that.
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _PROBE_S * _NUM_PROBES),
)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file on this host."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP port; port 0 lets the listener choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST:PORT`, `[IPV6]:PORT`, or `:PORT` for every interface. Raises ConfigError."""
        host, separator, port = str(text).rpartition(":")  # from Python it may be anything
        if not (separator and port.isascii() and port.isdigit()):
            raise ConfigError(
                f"the address is {text!r}; expected HOST:PORT, such as 10.0.0.7:8901."
            )
        if int(port) > MAX_PORT:
            raise ConfigError(
                f"the port of {text!r} is {port}; expected HOST:PORT, with a port of 0 to "
                f"{MAX_PORT}."
            )
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))

    @property
    def host_port(self) -> str:
        """The address as a user writes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether nobody on another host can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            # The name of a host: what it stands for may change.
            return False


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Read an address. Raises ConfigError if it is malformed or its path exceeds 107 bytes."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        if len(os.fsencode(rest)) > MAX_UNIX_PATH_BYTES:
            raise ConfigError(
                f"unix socket path {rest!r} exceeds {MAX_UNIX_PATH_BYTES} bytes; use a shorter "
                f"folder"
            )
        return UnixAddress(rest)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and int(port) <= MAX_PORT:
        return TcpAddress(host, int(port))
    raise ConfigError(f"link address is {text!r}; expected unix:/path or tcp:host:port")


def notice_dead_peers(connection: socket.socket) -> None:
    """Let the kernel end a TCP connection whose peer's host is gone; that of a process shows."""
    if connection.family == socket.AF_UNIX:
        return
    # Another descriptor of it: what event loops show of their sockets cannot always be set.
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        for level, option, value in _NOTICE:
            own.setsockopt(level, option, value)


def open_connection(address: Address, timeout_s: float) -> socket.socket:
    """Connect a blocking socket, without Nagle's delay. Raises OSError."""
    if isinstance(address, UnixAddress):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        try:
            connection.connect(address.path)
        except OSError:
            connection.close()
            raise
    else:
        connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_dead_peers(connection)
        except OSError:
            connection.close()
            raise
    return connection
