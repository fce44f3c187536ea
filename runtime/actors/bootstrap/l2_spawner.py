"""How L2s become Ray actors, which outlive who makes them, and how their storage actors do."""

import asyncio
import os
from typing import Any

from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydix.errors import ConfigError
from raydix.runtime.actors.bootstrap.engine_handle import typed_error
from raydix.runtime.actors.bootstrap.head_calls import find_actor, kill_actor, make_actor
from raydix.runtime.actors.bootstrap.ray_actor import RayActor, SharedRayActor
from raydix.runtime.actors.bootstrap.ray_peers import RayPeerFinder
from raydix.runtime.actors.log_sender import say_where_the_log_is, send_log
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import end_with, end_with_parent
from raydix.runtime.actors.storage import StorageActor
from raydix.runtime.actors.supervision.node_memory import NodeMemoryActor
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind, RunningActor
from raydix.runtime.config.capacity import format_bytes

_START_S = 120.0
"""The time for an L2 to start: Ray may wait until others give back the memory that it needs."""


def enter_lasting(_actor: object, log_path: str) -> int:
    """Tie an L2's process to Ray's node process alone. Run once in each."""
    end_with_parent()
    log_to(_actor, log_path)
    say_where_the_log_is(ActorKind.HOST_MEMORY)
    return os.getpid()


def enter_child(_actor: object, parent_pid: int, log_path: str, label: str) -> int:
    """Tie a storage actor's process to its L2's, too. Run once in each."""
    send_log(log_path, label)
    say_where_the_log_is(label)
    end_with_parent()
    end_with(parent_pid)
    return os.getpid()


def log_to(_actor: object, log_path: str) -> None:
    """Send the log of an L2 to one engine more. Run in it for each that comes."""
    send_log(log_path, ActorKind.HOST_MEMORY.value)


class StorageSpawner:
    """The `Spawner` of an L2, which makes its storage actors; it is pickled into the L2."""

    def __init__(self, node: str, exporter: MetricsExporter | None) -> None:
        """`node`: the id of the L2's node of Ray."""
        self._node = node
        self._exporter = exporter

    async def spawn(
        self, kind: ActorKind, name: str, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """Start a storage actor, for an L2 which runs in this process and with which it ends."""
        if kind is not ActorKind.STORAGE:
            raise ValueError(f"an L2 makes no {kind}")
        arguments["exporter"] = self._exporter
        handle = await make_actor(StorageActor, arguments, _options(name, self._node))
        label = name.rpartition(":")[2]
        entering = handle.__ray_call__.remote(enter_child, os.getpid(), log_path, label)
        return RayActor(handle, name, await _entered(handle, name, entering))


async def spawn_l2(
    actor: str,
    ray_node: str,
    /,
    *,
    node: str | None,
    reserved_bytes: int,
    log_path: str,
    exporter: MetricsExporter | None,
    **arguments: Any,
) -> RunningActor:
    """Start an L2 under this Ray name on a node of Ray.

    One that can be found on a `node` is detached: it ends by itself, or with the node of Ray.
    Raises ConfigError if Ray has not so much memory left there.
    """
    options = {**_options(actor, ray_node), "memory": reserved_bytes}
    if node is not None:
        options["lifetime"] = "detached"
    arguments |= {"node": node, "log_path": log_path, "exporter": exporter}
    arguments |= {"spawner": StorageSpawner(ray_node, exporter), "finder": RayPeerFinder()}
    kind = RayActor if node is None else SharedRayActor
    try:
        async with asyncio.timeout(_START_S):
            handle = await make_actor(NodeMemoryActor, arguments, options)
            entering = handle.__ray_call__.remote(enter_lasting, log_path)
            return kind(handle, actor, await _entered(handle, actor, entering))
    except TimeoutError:
        raise ConfigError(
            f"L2 has not started within {_START_S:g} s: others hold the "
            f"{format_bytes(reserved_bytes)} of memory that it needs on the node. Stop one of them "
            "(raydix stop), or lower cache.l2.bytes_per_node."
        ) from None


async def find_l2(name: str, pid: int, log_path: str) -> RunningActor | None:
    """The L2 of this Ray name and process, which logs to this engine, too; None if it ended."""
    try:
        handle = await find_actor(name, NAMESPACE)
        actor = SharedRayActor(handle, name, pid)
        # Not waited for: it may be stopped, which its keeper finds.
        handle.__ray_call__.remote(log_to, log_path)
    except (ValueError, ProcessLookupError, RayError):
        return None
    return actor


def _options(name: str, node: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": NAMESPACE,
        "num_cpus": 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
    }


async def _entered(handle: Any, name: str, entering: Any) -> int:
    """The pid of a new actor, once its process is set up."""
    try:
        pid: int = await entering
        return pid
    except BaseException as error:
        # Also if this is cancelled: nobody else knows of the actor.
        kill_actor(handle, name)
        if isinstance(error, RayError):
            raise typed_error(error, name) from error
        raise
