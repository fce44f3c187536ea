"""Starting engines and finding them: the one place where plain classes become Ray actors."""

import asyncio
import logging
import os
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.cluster import (
    find_cluster,
    join_cluster,
    metrics_url,
    named_cluster,
)
from raydix.runtime.actors.bootstrap.control_client import ask_facts
from raydix.runtime.actors.bootstrap.engine_handle import (
    EngineHandle,
    OwnEngine,
    find_supervisor,
    typed_error,
)
from raydix.runtime.actors.bootstrap.engine_sizes import (
    EngineSizes,
    measure_checkpoint,
    size_engine,
)
from raydix.runtime.actors.bootstrap.log_follower import LogFollower
from raydix.runtime.actors.bootstrap.placement import Placement, place, release
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.engine_record import EngineRecord, find_record, require_free_name
from raydix.runtime.actors.gpu import GpuActor
from raydix.runtime.actors.gpu_model import BuildModel, build_torch_model
from raydix.runtime.actors.host_memory import HostMemoryActor
from raydix.runtime.actors.log_sender import send_log
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import ProcessHandle, end_with, end_with_parent
from raydix.runtime.actors.scheduler import SchedulerActor
from raydix.runtime.actors.storage import StorageActor
from raydix.runtime.actors.supervision.arena_registry import PlannedArena
from raydix.runtime.actors.supervision.engine_facts import EngineFacts
from raydix.runtime.actors.supervision.gateway import GatewaySettings
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind, RunningActor, actor_name
from raydix.runtime.actors.supervision.supervisor import SupervisorActor
from raydix.runtime.actors.threads import on_thread
from raydix.runtime.config.capacity import effective_summary
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import replace_model_path
from raydix.runtime.model.hub import hub_environment, pin_model_path
from raydix.runtime.phases import phase

logger = logging.getLogger(__name__)

_RAY_KILL_S = 0.5
_NAME_RELEASE_S = 5.0
_NAME_RETRY_S = 0.05
_GPU_ENVIRONMENT = {
    # Every rank sees all devices of its host: peers map each other's memory. It chooses its own by
    # index.
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    # The ranks of a lane are on one host, and find each other on its loopback device alone.
    "NCCL_SOCKET_IFNAME": "lo",
    # A crash within NVLink multicast can take the devices from everybody on the host.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    # Streams in one hardware queue wait for each other: one that waits for a peer must not be in
    # that of another for which the peer waits. This is as many queues as there are.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}

__all__ = ["EngineHandle", "find_engine", "start_engine"]


def start_engine(
    config: EngineConfig,
    name: str = "raydix",
    address: str | None = None,
    supervision: Supervision | None = None,
    build_model: BuildModel = build_torch_model,
    *,
    gateway: GatewaySettings | None = None,
    control: StartControl | None = None,
) -> EngineHandle:
    """Start an engine and wait until it serves; it ends with this process.

    Ray: an initialised one, else the cluster at `address`, else the job's, else a private one on
    this host. What its actors log is logged in this process, too. `build_model`: what GPU actors
    drive. `gateway`: where it listens for clients on other hosts.

    Raises ConfigError, CheckpointError, or EngineDead, also if `name` is that of a living engine,
    and if `control` calls the start off.
    """
    began_s = time.monotonic()
    control = control or StartControl()
    require_free_name(name)
    # Whoever loads it later finds the same commit, and on this host without asking the Hub.
    config = replace_model_path(config, pin_model_path(config.model.path))
    # Beside Ray's own start: either takes seconds.
    checking = on_thread("check", _check, config, build_model)
    with phase(logger, "Ray cluster joined"):
        cluster = join_cluster(address, config.ray)
    placement: Placement | None = None
    try:
        sizes = checking.result()
        control.check()
        with phase(logger, "resources reserved"):
            placement = place(config, sizes)
        control.wait_precondition()
        spawner = RaySpawner(
            engine=name, placement=placement, config=config, build_model=build_model
        )
        supervisor, follower, facts = _start_supervisor(
            spawner,
            control,
            name=name,
            config=config,
            supervision=supervision or Supervision(),
            gateway=gateway,
            arena=_planned_arena(sizes),
        )
    except BaseException:
        if cluster is not None:
            # It takes the placement group with it.
            cluster.stop()
        elif placement is not None:
            release(placement)
        raise

    own = OwnEngine(supervisor, placement, cluster, follower)
    _log_start(config, facts, own)
    logger.info("engine %s serves, %.1f s after its start", name, time.monotonic() - began_s)
    return EngineHandle(facts.client, facts.record, own)


def _check(config: EngineConfig, build_model: BuildModel) -> EngineSizes | None:
    if build_model is not build_torch_model:
        # What other models take is not known here.
        return None
    with phase(logger, "configuration checked"):
        return size_engine(config, measure_checkpoint(config))


def _planned_arena(sizes: EngineSizes | None) -> PlannedArena | None:
    if sizes is None or sizes.arena_bytes is None:
        return None
    return PlannedArena(layout=sizes.layout, size_bytes=sizes.arena_bytes)


def _log_start(config: EngineConfig, facts: EngineFacts, own: OwnEngine) -> None:
    """Say how an engine was started, and where its figures are."""
    logger.info("%s", effective_summary(config, facts.layout, facts.num_pages))
    logger.info("metrics: %s", metrics_url(own.placement.node_id))
    if own.cluster is not None and config.ray.dashboard_port is not None:
        url = f"http://127.0.0.1:{config.ray.dashboard_port}"
        logger.info("Ray's dashboard: %s, its folder %s", url, own.cluster.ray_folder)


def find_engine(name: str = "raydix", address: str | None = None) -> EngineHandle:
    """Reach a running engine by its name. Raises EngineDead if none serves.

    Ray is asked only if a cluster is named, by `address` or for a submitted job, or if this process
    is part of one that has an engine which is not found without it. Not for a running event loop.
    """
    record = find_record(name) if named_cluster(address) is None else None
    if record is not None:
        return EngineHandle(asyncio.run(ask_facts(name, record)), record)

    find_cluster(address, name)
    supervisor = find_supervisor(name)
    try:
        facts: EngineFacts = ray.get(supervisor.facts.remote())
    except RayError as error:
        raise typed_error(error, f"engine {name}") from error
    return EngineHandle(facts.client, facts.record)


def _start_supervisor(
    spawner: "RaySpawner", control: StartControl, *, name: str, **arguments: Any
) -> tuple[Any, LogFollower, EngineFacts]:
    """The Supervisor's Ray handle, which must be kept, its log, and facts of the running engine."""
    supervisor = _make_supervisor(
        spawner.options(ActorKind.SUPERVISOR, actor_name(name, ActorKind.SUPERVISOR)),
        name,
        {"name": name, "spawner": spawner, **arguments},
    )

    follower: LogFollower | None = None
    try:
        with phase(logger, "Supervisor started"):
            record: EngineRecord = control.get(supervisor.open.remote())
        follower = LogFollower(name, record)
        facts: EngineFacts = control.get(supervisor.start.remote())
    except (RayError, EngineDead) as error:
        ray.kill(supervisor)
        if follower is not None:
            follower.finish()
        raise typed_error(error, f"engine {name}") from error
    return supervisor, follower, facts


def _make_supervisor(options: dict[str, Any], name: str, arguments: dict[str, Any]) -> Any:
    """The Ray handle of a new Supervisor. Raises EngineDead if a living one has its name."""
    give_up_s = time.monotonic() + _NAME_RELEASE_S
    while True:
        try:
            return ray.remote(SupervisorActor).options(**options).remote(**arguments)
        except ValueError as error:
            # Ray frees the name of an actor a moment after its end.
            if time.monotonic() > give_up_s or _is_alive(options["name"]):
                raise EngineDead(
                    f"an engine named {name} runs already in this cluster; choose another name"
                ) from error
            time.sleep(_NAME_RETRY_S)


def _is_alive(actor: str) -> bool:
    try:
        ray.get(
            ray.get_actor(actor, namespace=NAMESPACE).__ray_call__.remote(_answer),
            timeout=_NAME_RELEASE_S,
        )
    except (ValueError, RayActorError):
        return False
    except GetTimeoutError:
        return True
    return True


def enter_process(_actor: object, parent_pid: int, log_path: str, label: str) -> int:
    """Tie an actor's process to Ray's node process and to the one that started it.

    Run once in each actor; whichever of the two ends, the actor's process ends too. What it logs
    goes to the engine's log under `label`.
    """
    send_log(log_path, label)
    end_with_parent()
    end_with(parent_pid)
    return os.getpid()


def use_cores(_actor: object, num_ranks: int) -> None:
    """Share the cores between GPU actors on cpu. Run once in each, before it imports torch.

    Ray gives an actor that reserves no CPU one thread. One core is left to the Scheduler and the
    tiers. What Ray counts as the node's CPUs respects a container's quota.
    """
    here = ray.get_runtime_context().get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == here]
    num_cores = min(len(os.sched_getaffinity(0)), int(node["Resources"].get("CPU", 1)))
    os.environ["OMP_NUM_THREADS"] = str(max(1, (num_cores - 1) // num_ranks))


def use_environment(_actor: object, variables: dict[str, str]) -> None:
    """Set environment variables. Run once in each GPU actor, before it imports their readers."""
    os.environ.update(variables)


def use_assigned_device(actor: GpuActor) -> None:
    """Load on the device that Ray assigned. Run once in each GPU actor on cuda."""
    assigned = str(ray.get_gpu_ids()[0])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    actor.use_device(visible.split(",").index(assigned) if visible else int(assigned))


class RayActor:
    """One incarnation of an actor in a Ray worker process of this host."""

    def __init__(self, handle: Any, name: str, pid: int) -> None:
        self._handle = handle
        self._name = name
        self._process = ProcessHandle(pid)

    @property
    def pid(self) -> int:
        """See `RunningActor`."""
        return self._process.pid

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `RunningActor`."""
        try:
            return await getattr(self._handle, method).remote(*arguments)
        except RayError as error:
            raise typed_error(error, self._name) from error

    async def ping(self) -> None:
        """See `RunningActor`."""
        await self._handle.__ray_call__.remote(_answer)

    async def wait_ended(self) -> None:
        """See `RunningActor`."""
        await self._process.wait()

    def kill(self) -> None:
        """See `RunningActor`.

        Ray is told first, so that it knows that this is meant; if it does nothing, the kernel
        kills.
        """
        ray.kill(self._handle)
        asyncio.get_running_loop().call_later(_RAY_KILL_S, self._process.kill)


def _answer(_actor: object) -> None:
    return None


class RaySpawner:
    """Makes Ray actors in an engine's placement group. Pickled into the Supervisor."""

    def __init__(
        self, *, engine: str, placement: Placement, config: EngineConfig, build_model: BuildModel
    ) -> None:
        self._engine = engine
        self._build_model = build_model
        self._placement = placement
        self._device = config.model.device
        self._num_ranks = config.parallel.dp * config.parallel.tp
        # This process's: workers of a running cluster have that of whoever started it.
        self._hub_environment = hub_environment(config.model.path, os.environ)

    async def spawn(
        self, kind: ActorKind, name: str, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """See `Spawner`."""
        match kind:
            case ActorKind.SCHEDULER:
                cls: type = SchedulerActor
            case ActorKind.HOST_MEMORY:
                cls = HostMemoryActor
            case ActorKind.STORAGE:
                cls = StorageActor
            case ActorKind.GPU:
                cls = GpuActor
                arguments["build_model"] = self._build_model
            case ActorKind.SUPERVISOR:
                raise ValueError("the driver alone makes Supervisors")
        if kind is not ActorKind.GPU:
            arguments["exporter"] = MetricsExporter(self._engine)
        try:
            handle = ray.remote(cls).options(**self.options(kind, name)).remote(**arguments)
        except RayError as error:
            raise typed_error(error, name) from error
        try:
            return await self._enter(kind, handle, name, log_path)
        except BaseException as error:
            # Also if this is cancelled: nobody else knows of the actor.
            ray.kill(handle)
            if isinstance(error, RayError):
                raise typed_error(error, name) from error
            raise

    async def _enter(self, kind: ActorKind, handle: Any, name: str, log_path: str) -> RunningActor:
        """Set a new actor's process up."""
        label = name.rpartition(":")[2]
        pid = await handle.__ray_call__.remote(enter_process, os.getpid(), log_path, label)
        if kind is ActorKind.GPU and self._hub_environment:
            # Not by a runtime_env, which Ray's dashboard shows: a token may be among it.
            await handle.__ray_call__.remote(use_environment, self._hub_environment)
        if kind is ActorKind.GPU and self._device == "cuda":
            await handle.__ray_call__.remote(use_assigned_device)
        elif kind is ActorKind.GPU:
            await handle.__ray_call__.remote(use_cores, self._num_ranks)
        try:
            return RayActor(handle, name, pid)
        except ProcessLookupError as error:
            raise EngineDead(f"{name} ended at once") from error

    def options(self, kind: ActorKind, name: str) -> dict[str, Any]:
        """Ray options: named, never restarted by Ray, nothing detached."""
        options: dict[str, Any] = {
            "name": name,
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement.group),
        }
        if kind is ActorKind.GPU and self._device == "cuda":
            options["num_gpus"] = 1
            options["runtime_env"] = {"env_vars": _GPU_ENVIRONMENT}
        return options
