"""Which Ray cluster a process joins: one that runs already, or a private one of its own."""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partialmethod

import ray
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.ray_constants import DASHBOARD_ADDRESS, KV_NAMESPACE_DASHBOARD
from ray.exceptions import RayError

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.bootstrap import reaper
from raydix.runtime.actors.bootstrap.cluster_address import require_cluster
from raydix.runtime.actors.bootstrap.head_watch import watch_head
from raydix.runtime.actors.engine_record import running_names
from raydix.runtime.actors.private_folder import PrivateFolder
from raydix.runtime.actors.process import exit_process
from raydix.runtime.actors.supervision.spawn import NAMESPACE
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.config.sections import RaySection

_OBJECT_STORE_BYTES = 100 << 20  # nothing of ours passes through it

_NOBODY = "127.0.0.1:0"
"""An address that refuses whoever dials it."""

_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's setting of the seconds after which it ends a process whose head is silent."""
_RECONNECT_S = 60.0


class PrivateCluster:
    """Owns: a Ray cluster on this host that this process started, and its folder.

    When this process ends, however it ends, a reaper ends what Ray's own agents leave for half a
    minute.
    """

    def __init__(
        self,
        num_cpus: int | None = None,
        settings: RaySection | None = None,
        num_gpus: int | None = None,
    ) -> None:
        """`num_cpus`, `num_gpus`: how many it lets engines reserve; None: as many as there are.

        Raises ConfigError if a port of the settings is taken.
        """
        settings = settings or RaySection()
        require_free_port("ray.metrics_port", settings.metrics_port)
        require_free_port("ray.dashboard_port", settings.dashboard_port)
        self._folder = PrivateFolder()
        reap = [sys.executable, "-I", "-S", reaper.__file__, self._folder.path, str(os.getpid())]
        self._reaper = subprocess.Popen(reap, stdin=subprocess.PIPE, start_new_session=True)
        try:
            with _only_what_is_used(has_dashboard=settings.dashboard_port is not None):
                _on_lasting_thread(lambda: self._start(num_cpus, num_gpus, settings))
        except Exception as error:
            text = str(error).partition("\n")[0]
            raise EngineDead(
                f"Ray did not start on this host: {text} Try again once it has less to do, or join "
                "a cluster that runs already (--address)."
            ) from error

    def _start(self, num_cpus: int | None, num_gpus: int | None, settings: RaySection) -> None:
        ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            include_dashboard=settings.dashboard_port is not None,
            dashboard_port=settings.dashboard_port,
            _metrics_export_port=settings.metrics_port,
            # Ray would let engines reserve part of it alone.
            _memory=available_memory_bytes(),
            object_store_memory=_OBJECT_STORE_BYTES,
            # Each process of Ray opens Ray's own folders to everybody, again and again: in
            # ours nobody else reaches them.
            _temp_dir=self.ray_folder,
            # Actors are the service, not work for idle times, as Ray's default of 15 supposes.
            _system_config={"worker_niceness": 0},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )

    @property
    def ray_folder(self) -> str:
        """Ray's temporary folder, where it leaves what Grafana and Prometheus are to read."""
        return f"{self._folder.path}/ray"

    def stop(self) -> None:
        """End the cluster."""
        ray.shutdown()
        if self._reaper.stdin is not None:
            self._reaper.stdin.close()
        self._folder.abandon()


def join_cluster(address: str | None, settings: RaySection | None = None) -> PrivateCluster | None:
    """Make this process part of a cluster. A private one is returned, so that it can be ended.

    `settings` are for a private one. Raises ConfigError if a named cluster cannot be reached, and
    if there are settings for a cluster that has its own.
    """
    if is_to_be_private(address):
        return PrivateCluster(settings=settings)

    address = named_cluster(address)
    if settings is not None and (settings.metrics_port or settings.dashboard_port):
        raise ConfigError(
            "ray.metrics_port and ray.dashboard_port are for a cluster that Raydix starts itself, "
            "and this engine joins one that runs. Leave them out, and give them to `ray start`."
        )
    if address is not None:
        _connect(address)
    return None


def own_node() -> str:
    """The id of the Ray node that this process belongs to."""
    return str(ray.get_runtime_context().get_node_id())


def metrics_url(node_id: str) -> str:
    """Where a node of the cluster that this process is part of serves its metrics."""
    [node] = [node for node in ray.nodes() if node["NodeID"] == node_id]
    return f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"


def find_cluster(address: str | None, engine: str) -> None:
    """Join the cluster where `engine` runs. Raises EngineDead if none is known."""
    if ray.is_initialized():
        return
    address = named_cluster(address)
    if address is None:
        others = ", ".join(running_names())
        raise EngineDead(
            f"no engine named {engine} was found on this host. "
            + (f"Running here: {others}. " if others else "")
            + "Start one; or say where it listens, as NAME@HOST:PORT or by address=, or the "
            "address of its Ray cluster."
        )
    _connect(address)


def is_to_be_private(address: str | None) -> bool:
    """Whether this process is part of no cluster, and none is named that it could join."""
    return not ray.is_initialized() and named_cluster(address) is None


def named_cluster(address: str | None) -> str | None:
    """`address`, else that of a submitted job, from the variable that Ray sets for it.

    None if this process is part of a cluster already: then it is that one which counts.
    """
    if ray.is_initialized():
        return None
    return address or os.environ.get("RAY_ADDRESS") or None


def require_free_port(name: str, port: int | None) -> None:
    """Raise ConfigError if somebody listens at this port of the host."""
    if port is not None and not is_free_port(port):
        raise ConfigError(f"{name} is {port}, which is taken on this host. Choose another one.")


def is_free_port(port: int) -> bool:
    """Nobody listens there at the moment."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _connect(address: str) -> None:
    require_cluster(address)
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        if address == "auto":
            raise ConfigError(
                "no Ray cluster runs on this host. Start one with `ray start --head`, give its "
                "HOST:PORT, or leave the address out for a private one."
            ) from error
        raise ConfigError(
            f"the Ray cluster at {address} refuses this process: {error}. If it has token "
            f"authentication, set "
            "RAY_AUTH_MODE=token and provide its token; if it has not, set RAY_AUTH_MODE=disabled."
        ) from error
    _watch_head()


def _watch_head() -> None:
    """Say it if the cluster that this process has joined loses its head."""
    head = ray.get_runtime_context().gcs_address

    def is_ours() -> bool:
        try:
            return ray.is_initialized() and ray.get_runtime_context().gcs_address == head
        except AttributeError:
            # It has left the cluster in between.
            return False

    watch_head(head, float(os.environ.get(_RECONNECT) or _RECONNECT_S), is_ours, exit_process)


@contextmanager
def _only_what_is_used(*, has_dashboard: bool) -> Iterator[None]:
    """Let a node that starts have no more processes than engines use, and ports of its own.

    `ray.init` has no arguments for it. Each of those left out is a Python process that would take a
    core for a second of the start, and Ray waits for the dashboard's server, even if it shows no
    dashboard, before it begins with the node itself.
    """
    init, start_api_server = RayParams.__init__, Node.start_api_server
    chosen = partialmethod(
        init,
        # At Ray's fixed port only the first cluster of a host has an agent that answers: without
        # one the pages of jobs and logs stay empty.
        dashboard_agent_listen_port=0,
        # It reads all logs for drivers that print them; actors tell the engine's log themselves.
        include_log_monitor=False,
        # The autoscaler, which can add no node here, tells the dashboard what the cluster lacks.
        no_monitor=not has_dashboard,
    )
    RayParams.__init__ = chosen  # type: ignore[method-assign, assignment]
    if not has_dashboard:
        Node.start_api_server = _tell_nowhere
    try:
        yield
    finally:
        RayParams.__init__ = init  # type: ignore[method-assign]
        Node.start_api_server = start_api_server


def _tell_nowhere(node: Node, **_arguments: object) -> None:
    """Tell a node's agent of a dashboard that nobody is at, in place of one that starts.

    Without an address it asks for one each second, and each time writes a traceback into its log.
    """
    node.get_gcs_client().internal_kv_put(
        DASHBOARD_ADDRESS.encode(), _NOBODY.encode(), True, KV_NAMESPACE_DASHBOARD
    )


def _on_lasting_thread(start: Callable[[], object]) -> None:
    """Call `start` on a thread that never ends.

    The kernel ends Ray's processes with the thread that started them.
    """
    result: Future[object] = Future()

    def run() -> None:
        try:
            result.set_result(start())
        except BaseException as error:  # noqa: BLE001  it belongs to the thread that waits
            result.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=run, name="raydix-cluster", daemon=True).start()
    result.result()
