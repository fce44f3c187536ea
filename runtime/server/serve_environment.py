"""What Ray Serve is told by the environment: it reads it when it is imported."""

from collections.abc import Mapping

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server.listener import free_port

DEREGISTER_S = 2.0
"""How long a replica that ends goes on to accept, until every proxy knows of it."""
_ANY_PORT = TcpAddress("0.0.0.0", 0)


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
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # The replica's server and the application have one loop: no hop between threads per token.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DEREGISTER_S),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        **{f"RAY_SERVE_HAPROXY_{name}": f"{folder}/{file}" for name, file in files.items()},
        **{f"RAY_SERVE_{name}": str(free_port(_ANY_PORT)) for name in ports},
    }
