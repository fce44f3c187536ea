"""Addresses of listeners as they travel between actors: `unix:/path` or `tcp:host:port`."""

import os
import socket
from dataclasses import dataclass

from raydix.errors import ConfigError

MAX_UNIX_PATH_BYTES = 107


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
    if kind == "tcp" and host and port.isdecimal() and int(port) < 65536:
        return TcpAddress(host, int(port))
    raise ConfigError(f"link address is {text!r}; expected unix:/path or tcp:host:port")


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
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
