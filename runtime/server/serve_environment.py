"""What Ray Serve is told by the environment: it reads it when it is imported."""

import os
import shlex
import shutil
from collections.abc import Mapping

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server.listener import free_port

DEREGISTER_S = 2.0
"""The time for which a replica that ends still accepts, until every proxy knows of it."""
_ANY_PORT = TcpAddress("0.0.0.0", 0)
_PROXY_CHECK_S = 1.0
"""The interval at which Ray Serve asks whether HAProxy's manager lives. After three questions
without an answer it starts another; meanwhile nobody listens.
"""
_LAUNCHER = """#!/bin/sh
# Whoever starts HAProxy also ends it. Where that one is killed, nobody would: the kernel does.
exec {setpriv} --pdeathsig KILL {haproxy} "$@"
"""


def serve_environment(folder: str) -> Mapping[str, str]:
    """What Ray Serve's processes read from the environment; to be set before the cluster starts.

    HAProxy instead of Ray Serve's own proxy, which sends each token through Ray. folder: for its
    files and sockets, one of which lets anybody who reaches it steer HAProxy.
    """
    ports = ("HAPROXY_METRICS_PORT", "HAPROXY_STATS_PORT", "FALLBACK_PROXY_HTTP_PORT")
    files = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_FILE": "server-state",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    free: set[int] = set()
    while len(free) < len(ports):
        free.add(free_port(_ANY_PORT))
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # The replica's server and the application have one loop: no hop between threads per token.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DEREGISTER_S),
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": str(_PROXY_CHECK_S),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        **{f"RAY_SERVE_HAPROXY_{name}": f"{folder}/{file}" for name, file in files.items()},
        **{f"RAY_SERVE_{name}": str(port) for name, port in zip(ports, free, strict=True)},
    }


def haproxy_launcher(folder: str, haproxy: str) -> Mapping[str, str]:
    """The variables by which HAProxy does not outlive a host process that is killed.

    It would keep its port for ever, and answer 503 there. Nothing where that cannot be had: without
    util-linux, or where `folder` may hold no programs.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return {}
    path = os.path.join(folder, "haproxy")
    with open(path, "x") as file:
        file.write(_LAUNCHER.format(setpriv=shlex.quote(setpriv), haproxy=shlex.quote(haproxy)))
    os.chmod(path, 0o700)
    return {"RAY_SERVE_HAPROXY_BINARY_PATH": path} if os.access(path, os.X_OK) else {}
