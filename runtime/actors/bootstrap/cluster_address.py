"""Addresses of Ray clusters, judged before Ray itself tries them, for minutes."""

import os
import socket

from raydix.errors import ConfigError

_DIAL_S = 10.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client of HTTP/2 says first (RFC 9113, 3.4), with settings that say nothing."""
_FRAME_HEADER_BYTES = 9
_SETTINGS = 4


def require_cluster(address: str) -> None:
    """Raise ConfigError unless `address` can be a cluster's and something like Ray answers there.

    `auto`, the cluster that runs on this host, is left to Ray.
    """
    if address == "auto":
        return
    host, port = _host_and_port(address)
    try:
        with socket.create_connection((host, port), _DIAL_S) as connection:
            is_ray = _may_be_ray(connection)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error}. Start one, or correct the address."
        ) from None
    if not is_ray:
        raise ConfigError(
            f"what answers at {address} is no Ray cluster. Give the address that `ray start "
            "--head` printed; its port is 6379 unless another was chosen."
        )


def _host_and_port(address: str) -> tuple[str, int]:
    if address.startswith(("http://", "https://")):
        raise ConfigError(
            f"{address} is a dashboard, where jobs are submitted. Give the cluster's own address "
            "as HOST:PORT, say 10.0.0.1:6379, or submit a job."
        )
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address} is for Ray Client, over which an engine cannot be started. Run this on a "
            "node of the cluster with its HOST:PORT, say 10.0.0.1:6379, or submit a job."
        )
    if address == "local":
        raise ConfigError("Leave the address out for a private cluster; `local` is none.")

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f"{address!r} is no address of a Ray cluster; expected HOST:PORT, say 10.0.0.1:6379, "
            "or auto for the one that runs on this host."
        )
    return host.strip("[]"), int(port)


def _may_be_ray(connection: socket.socket) -> bool:
    """Ray speaks gRPC, hence HTTP/2: its first frame holds settings."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0", "false"):
        # It waits for a handshake. Whether it is Ray, Ray finds out.
        return True
    connection.sendall(_PREFACE)
    header = b""
    try:
        while len(header) < _FRAME_HEADER_BYTES:
            part = connection.recv(_FRAME_HEADER_BYTES - len(header))
            if not part:
                return False
            header += part
    except ConnectionError:
        return False
    except TimeoutError:
        # A busy cluster may take longer.
        return True
    return header[3] == _SETTINGS
