"""How an engine's actors become Ray actors, each in a worker process of Ray."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.engine_handle import typed_error
from raydix.runtime.actors.bootstrap.head_calls import kill_actor, make_actor
from raydix.runtime.actors.bootstrap.l2_spawner import find_l2, spawn_l2
from raydix.runtime.actors.bootstrap.placement import Placement
from raydix.runtime.actors.bootstrap.ray_actor import RayActor
from raydix.runtime.actors.gpu import GpuActor
from raydix.runtime.actors.gpu_model import BuildModel
from raydix.runtime.actors.kv_publisher import KvPublisherActor
from raydix.runtime.actors.log_sender import say_where_the_log_is, send_log
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import end_with, end_with_parent
from raydix.runtime.actors.scheduler import SchedulerActor
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind, RunningActor
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.checkpoint.hub import hub_environment

logger = logging.getLogger(__name__)

_SPARE_AFTER_S = 5.0
"""The time from the start of a GPU actor to that of its spare: its own imports are over by then."""
_THREADS = "OMP_NUM_THREADS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPU_ENVIRONMENT = {
    # The ranks of a lane are on one host, and find each other on its loopback device alone.
    "NCCL_SOCKET_IFNAME": "lo",
    # A crash within NVLink multicast can take the devices from everybody on the host.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    # Streams in one hardware queue wait for each other: one that waits for a peer must not be in
    # that of another for which the peer waits. This is as many queues as there are.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}


def enter_process(_actor: object, parent_pid: int, log_path: str, label: str) -> int:
    """Tie an actor's process to Ray's node process and to the one that started it.

    Run once in each actor; whichever of the two ends, the actor's process ends too. What it logs
    goes to the engine's log under `label`.
    """
    send_log(log_path, label)
    say_where_the_log_is(label)
    end_with_parent()
    end_with(parent_pid)
    return os.getpid()


def use_cores(_actor: object, num_ranks: int) -> None:
    """Share the cores between GPU actors on cpu. Run once in each, before it imports torch.

    Ray gives an actor that reserves no CPU one thread. One core is left to the Scheduler and the
    tiers. What Ray counts as the node's CPUs respects a container's quota. A number of threads that
    the user has set stays.
    """
    if _variable_of(os.getpid(), _THREADS) is not None:
        # What Ray sets itself comes later than the environment with which a process starts.
        return
    here = ray.get_runtime_context().get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == here]
    num_cores = min(len(os.sched_getaffinity(0)), int(node["Resources"].get("CPU", 1)))
    os.environ[_THREADS] = str(max(1, (num_cores - 1) // num_ranks))


def use_environment(_actor: object, variables: dict[str, str]) -> None:
    """Set environment variables. Run once in an actor, before it imports their readers.

    Not by a runtime_env: Ray's dashboard shows that, and a token may be among them, and it costs a
    process that has not started yet.
    """
    os.environ.update(variables)


def enter_supervisor(actor: object, variables: dict[str, str]) -> None:
    """Set environment variables, and say where the log is. Run once in a Supervisor."""
    use_environment(actor, variables)
    say_where_the_log_is(ActorKind.SUPERVISOR)


def use_assigned_device(actor: GpuActor) -> int:
    """Load on the device that Ray assigned. Run once in each GPU actor on cuda.

    Returns its number among the node's, of which this process sees all from now on: peers map each
    other's memory.
    """
    assigned = str(ray.get_gpu_ids()[0])
    visible = _variable_of(os.getppid(), _VISIBLE)
    os.environ.pop(_VISIBLE, None)
    if visible is not None:
        os.environ[_VISIBLE] = visible
    index = visible.split(",").index(assigned) if visible else int(assigned)
    actor.use_device(index)
    return index


def _variable_of(pid: int, name: str) -> str | None:
    """An environment variable with which a process of this user was started."""
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        found, _, value = entry.partition(b"=")
        if found == name.encode():
            return value.decode()
    return None


def wait_as_spare(
    _actor: object, parent_pid: int, variables: dict[str, str], prepare: Callable[[], None]
) -> None:
    """Import all that a rank needs, before it is one."""
    end_with(parent_pid)
    os.environ.update(variables)
    prepare()


def take_over(actor: GpuActor, arguments: dict[str, Any], device: int) -> None:
    """Make a spare the rank that it was made for, in its next incarnation."""
    # Nothing has been asked of it yet: it is as if it had only now been made.
    GpuActor.__init__(actor, **arguments)
    actor.use_device(device)


class RaySpawner:
    """A `Spawner` of Ray actors in an engine's placement group. It is pickled into the Supervisor.

    Owns, on cuda: for each GPU actor a spare process, which has imported what takes seconds and
    has touched no device. The next incarnation takes it over.
    """

    def __init__(
        self,
        *,
        engine: str,
        placement: Placement,
        config: EngineConfig,
        build_model: BuildModel,
        prepare_spare: Callable[[], None],
    ) -> None:
        """`prepare_spare`: imports what `build_model` needs."""
        self._engine = engine
        self._build_model = build_model
        self._placement = placement
        self._is_cuda = config.model.device == "cuda"
        self._exports_metrics = config.ray.export_metrics
        self._prepare_spare = prepare_spare
        self._num_ranks = config.parallel.dp * config.parallel.tp
        # This process's: workers of a running cluster have that of whoever started it.
        self.hub_environment = hub_environment(config.model.path, os.environ)
        """What an actor has to know to find a model on the Hub as this process does."""
        self._gpu_environment = self.hub_environment
        if self._is_cuda:
            self._gpu_environment = {**_GPU_ENVIRONMENT, **self.hub_environment}
        self._devices: dict[str, int] = {}
        """The device of each GPU actor, by name, from its first incarnation on."""
        self._incarnations: dict[str, int] = {}
        """The latest ones of GPU actors."""
        self._spares: dict[str, Any] = {}
        self._making: set[asyncio.Task[None]] = set()
        """The spares that are being made."""

    async def spawn(
        self, kind: ActorKind, name: str, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """Start an actor as a Ray actor."""
        arguments["exporter"] = self._exporter()
        match kind:
            case ActorKind.SCHEDULER:
                cls: type = SchedulerActor
            case ActorKind.EVENTS:
                cls = KvPublisherActor
            case ActorKind.GPU:
                return await self._spawn_gpu(name, log_path, arguments)
            case ActorKind.HOST_MEMORY | ActorKind.STORAGE:
                raise ValueError("L2 is made by `spawn_l2`, and makes its storage actors itself")
            case ActorKind.SUPERVISOR:
                raise ValueError("the driver alone makes Supervisors")
        return await self._enter(await self._make(cls, name, arguments), name, log_path)

    def _exporter(self) -> MetricsExporter | None:
        return MetricsExporter(self._engine) if self._exports_metrics else None

    @property
    def node(self) -> str:
        """The node of the placement group."""
        return self._placement.node_id

    async def spawn_l2(
        self, name: str, size_bytes: int, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """Start an L2 on the engine's node; not in its placement group, which it may outlive."""
        return await spawn_l2(
            name,
            self.node,
            # What somebody has reserved for the engine is not ours to count.
            reserved_bytes=size_bytes if self._placement.is_own else 0,
            log_path=log_path,
            exporter=self._exporter(),
            **arguments,
        )

    async def find_l2(self, name: str, pid: int, /, *, log_path: str) -> RunningActor | None:
        """The L2 of this Ray name and process; None if it has ended."""
        return await find_l2(name, pid, log_path)

    async def _spawn_gpu(self, name: str, log_path: str, arguments: dict[str, Any]) -> RunningActor:
        arguments["build_model"] = self._build_model
        self._incarnations[name] = arguments["incarnation"]
        actor = await self._take_spare(name, log_path, arguments)
        if actor is None:
            actor = await self._make_gpu(name, log_path, arguments)
        if self._is_cuda:
            asyncio.get_running_loop().call_later(
                _SPARE_AFTER_S, self._begin_spare, name, arguments
            )
        return actor

    async def _take_spare(
        self, name: str, log_path: str, arguments: dict[str, Any]
    ) -> RunningActor | None:
        """None if there is no spare process, or not any more."""
        spare = self._spares.pop(name, None)
        if spare is None:
            return None

        async def prepare() -> None:
            await spare.__ray_call__.remote(take_over, arguments, self._devices[name])

        try:
            return await self._enter(spare, name, log_path, prepare)
        except EngineDead as error:
            # Nobody watches an idle one: that is no end of the actor itself.
            logger.warning("%s starts in a new process: its spare one had ended: %s", name, error)
            return None

    async def _make_gpu(self, name: str, log_path: str, arguments: dict[str, Any]) -> RunningActor:
        # Once it has a device it keeps that: Ray, which counts none for a spare process, would give
        # away again what another rank computes on.
        is_assigned = self._is_cuda and name not in self._devices
        handle = await self._make(GpuActor, name, arguments, num_gpus=int(is_assigned))

        async def prepare() -> None:
            if self._gpu_environment:
                await handle.__ray_call__.remote(use_environment, self._gpu_environment)
            if not self._is_cuda:
                await handle.__ray_call__.remote(use_cores, self._num_ranks)
            elif is_assigned:
                self._devices[name] = await handle.__ray_call__.remote(use_assigned_device)
            else:
                await handle.__ray_call__.remote(GpuActor.use_device, self._devices[name])

        return await self._enter(handle, name, log_path, prepare)

    def _begin_spare(self, name: str, arguments: dict[str, Any]) -> None:
        """Make the spare of the next incarnation, if the one with these arguments is the latest."""
        if self._is_latest(name, arguments):
            making = asyncio.create_task(self._make_spare(name, arguments), name=f"spare-{name}")
            self._making.add(making)
            making.add_done_callback(self._making.discard)

    def _is_latest(self, name: str, arguments: dict[str, Any]) -> bool:
        return bool(self._incarnations[name] == arguments["incarnation"])

    async def _make_spare(self, name: str, arguments: dict[str, Any]) -> None:
        number = arguments["incarnation"] + 1
        spare_name = f"{name}.{number}"
        try:
            # Its device is counted by Ray for the first incarnation, and after that for the group.
            spare = await self._make(GpuActor, spare_name, arguments)
        except (RaydixError, ValueError) as error:
            logger.warning("%s has no spare process: %s", name, error)
            return
        if not self._is_latest(name, arguments):
            # The next incarnation has not waited for it.
            kill_actor(spare, spare_name)
            return
        spare.__ray_call__.remote(
            wait_as_spare, os.getpid(), self._gpu_environment, self._prepare_spare
        )
        self._spares[name] = spare

    async def _make(
        self, cls: type, name: str, arguments: dict[str, Any], num_gpus: int = 0
    ) -> Any:
        """The Ray handle of a new actor."""
        options = self.options(name) | ({"num_gpus": num_gpus} if num_gpus else {})
        return await make_actor(cls, arguments, options)

    async def _enter(
        self,
        handle: Any,
        name: str,
        log_path: str,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> RunningActor:
        """Set a new actor's process up; `prepare` does what only some need."""
        try:
            label = name.rpartition(":")[2]
            pid = await handle.__ray_call__.remote(enter_process, os.getpid(), log_path, label)
            if prepare is not None:
                await prepare()
            return RayActor(handle, name, pid)
        except BaseException as error:
            # Also if this is cancelled: nobody else knows of the actor.
            kill_actor(handle, name)
            if isinstance(error, RayError):
                raise typed_error(error, name) from error
            if isinstance(error, ProcessLookupError):
                raise EngineDead(f"{name} ended at once") from error
            raise

    def options(self, name: str) -> dict[str, Any]:
        """Ray options: named, never restarted by Ray, nothing detached."""
        return {
            "name": name,
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement.group),
        }
