"""Starting engines and finding them: the one place where plain classes become Ray actors."""

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.bootstrap.checked_model import check_model
from raydix.runtime.actors.bootstrap.cluster import (
    find_cluster,
    is_to_be_private,
    join_cluster,
    metrics_url,
    named_cluster,
    own_node,
)
from raydix.runtime.actors.bootstrap.control_client import ask_facts
from raydix.runtime.actors.bootstrap.engine_handle import (
    EngineHandle,
    OwnEngine,
    find_supervisor,
    typed_error,
)
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes
from raydix.runtime.actors.bootstrap.gpu_count import count_gpus
from raydix.runtime.actors.bootstrap.head_calls import once_name_is_free
from raydix.runtime.actors.bootstrap.log_follower import LogFollower
from raydix.runtime.actors.bootstrap.placement import Placement, place, release, require_node
from raydix.runtime.actors.bootstrap.ray_actor import answer
from raydix.runtime.actors.bootstrap.start_control import StartControl, holding_exit
from raydix.runtime.actors.engine_record import EngineRecord, find_record, require_free_name
from raydix.runtime.actors.gpu_model import BuildModel
from raydix.runtime.actors.kernel_build import build_ahead, pack_kernels
from raydix.runtime.actors.supervision.arena_registry import PlannedArena
from raydix.runtime.actors.supervision.engine_facts import EngineFacts
from raydix.runtime.actors.supervision.gateway import GatewaySettings
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind, actor_name
from raydix.runtime.actors.threads import on_thread
from raydix.runtime.actors.torch_builder import build_torch_model, import_torch_model
from raydix.runtime.config.capacity import effective_summary
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import replace_model_path
from raydix.runtime.model.checkpoint.hub import pin_model_path
from raydix.runtime.phases import phase

if TYPE_CHECKING:
    # What makes actors imports all of them, which takes as long as to import Ray.
    from raydix.runtime.actors.bootstrap.ray_spawner import RaySpawner

logger = logging.getLogger(__name__)

_FACTS_S = 10.0
_ALIVE_S = 5.0
"""The seconds in which an actor that lives answers, or is believed to live."""
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
    node: str | None = None,
    node_address: str | None = None,
    checking: "Future[StartModel] | None" = None,
) -> EngineHandle:
    """Start an engine and wait until it serves; it ends with this process.

    Ray: an initialised one, else the cluster at `address`, else the job's, else a private one on
    this host. What its actors log is logged in this process, too. `build_model`: what GPU actors
    drive. `gateway`: where it listens for clients on other hosts. `node`: the id of the Ray node
    where it is to run; None: wherever there is room. `node_address`: which node the lines of its
    log name, with the engine; None: they name neither. `checking`: what `check_config` has begun.

    Raises ConfigError, also if `name` is that of a living engine, CheckpointError, or EngineDead,
    also if `control` calls the start off.
    """
    began_s = time.monotonic()
    control = control or StartControl()
    require_free_name(name)
    uses_own_gpus = config.model.device == "cuda" and is_to_be_private(address)
    if uses_own_gpus:
        # Ray would take seconds to start, and then find the same.
        require_node(
            [{"GPU": float(config.parallel.num_ranks)}], [{"GPU": float(count_gpus() or 0)}]
        )
    config = pinned(config)
    if uses_own_gpus and build_model is build_torch_model:
        build_ahead(config)
    # All beside Ray's own start, which waits more than it computes: each takes seconds.
    on_thread("imports", _import_actors)
    checking = checking or check_config(config, build_model)
    with holding_exit():
        handle = _start_on_ray(
            checking,
            control,
            name=name,
            address=address,
            config=config,
            node=node,
            supervision=supervision or Supervision(),
            gateway=gateway,
            node_address=node_address,
        )
    logger.info("engine %s serves, %.1f s after its start", name, time.monotonic() - began_s)
    return handle


def pinned(config: EngineConfig) -> EngineConfig:
    """The same, with the commit of a model on the Hub.

    Whoever loads it later finds the same one, and on this host without asking the Hub.
    """
    return replace_model_path(config, pin_model_path(config.model.path))


def check_config(
    config: EngineConfig, build_model: BuildModel = build_torch_model
) -> "Future[StartModel]":
    """Begin to find out on a thread what the engines of a `pinned` configuration take."""
    return on_thread("check", _check, config, build_model)


def _start_on_ray(
    checking: "Future[StartModel]",
    control: StartControl,
    *,
    name: str,
    address: str | None,
    config: EngineConfig,
    node: str | None,
    **arguments: Any,
) -> EngineHandle:
    """Start the engine whose model is being checked; what was made is given back if that fails."""
    with phase(logger, "Ray cluster joined"):
        cluster = join_cluster(address, config.ray)
    placement: Placement | None = None
    try:
        model = control.result(checking)
        control.check()
        with phase(logger, "resources reserved"):
            placement = place(config, model.sizes, node)
        control.wait_precondition()
        spawner = model.make_spawner(name, placement, config)
        supervisor, follower, facts = _start_supervisor(
            spawner,
            control,
            name=name,
            config=config,
            arena=model.arena,
            cluster_owner_pid=None if cluster is None else os.getpid(),
            **arguments,
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
    return EngineHandle(facts.client, facts.record, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartModel:
    """The model that GPU actors drive. What it takes is None where nobody knows."""

    build: BuildModel
    prepare_spare: Callable[[], None]
    sizes: EngineSizes | None

    @property
    def arena(self) -> PlannedArena | None:
        """The arena, as far as it is known before ranks have loaded."""
        if self.sizes is None or self.sizes.arena_bytes is None:
            return None
        return PlannedArena(layout=self.sizes.layout, size_bytes=self.sizes.arena_bytes)

    def make_spawner(self, name: str, placement: Placement, config: EngineConfig) -> "RaySpawner":
        """Make a spawner for the actors of an engine that drives this model."""
        from raydix.runtime.actors.bootstrap.ray_spawner import RaySpawner

        return RaySpawner(
            engine=name,
            placement=placement,
            config=config,
            build_model=self.build,
            prepare_spare=self.prepare_spare,
        )


def _import_actors() -> None:
    """Import what makes actors, which is needed once Ray has started."""
    for name in ("bootstrap.ray_spawner", "supervision.supervisor"):
        importlib.import_module(f"raydix.runtime.actors.{name}")


def _check(config: EngineConfig, build_model: BuildModel) -> StartModel:
    """Measure the configured model, if it is that."""
    if build_model is not build_torch_model:
        # Its builder alone knows what such a model imports.
        return StartModel(build=build_model, prepare_spare=lambda: None, sizes=None)
    with phase(logger, "configuration checked"):
        checked = check_model(config)
    build = partial(build_torch_model, checkpoint=checked.checkpoint, kernels=pack_kernels(config))
    return StartModel(build=build, prepare_spare=import_torch_model, sizes=checked.sizes)


def _log_start(config: EngineConfig, facts: EngineFacts, own: OwnEngine) -> None:
    """Say how an engine was started, and where its figures are."""
    logger.info("%s", effective_summary(config, facts.layout, facts.num_pages))
    if config.ray.export_metrics:
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
        # A thread may wait here whose caller has given it up, and asks again by another one.
        facts: EngineFacts = ray.get(supervisor.facts.remote(own_node()), timeout=_FACTS_S)
    except GetTimeoutError as error:
        raise EngineDead(
            f"the Supervisor of engine {name} has not answered for {_FACTS_S:g} s: its process is "
            "stopped or busy, or is yet to start. Try again, and if that does not help, end it "
            "and start the engine again."
        ) from error
    except RayError as error:
        raise typed_error(error, f"engine {name}") from error
    return EngineHandle(facts.client, facts.record)


def _start_supervisor(
    spawner: "RaySpawner",
    control: StartControl,
    *,
    name: str,
    node_address: str | None,
    **arguments: Any,
) -> tuple[Any, LogFollower, EngineFacts]:
    """The Supervisor's Ray handle, which must be kept, its log, and facts of the running engine."""
    from raydix.runtime.actors.bootstrap.ray_spawner import enter_supervisor

    supervisor = _make_supervisor(
        spawner.options(actor_name(name, ActorKind.SUPERVISOR)),
        name,
        {"name": name, "spawner": spawner, **arguments},
    )

    follower: LogFollower | None = None
    try:
        with phase(logger, "Supervisor started"):
            control.get(supervisor.__ray_call__.remote(enter_supervisor, spawner.hub_environment))
            record: EngineRecord = control.get(supervisor.open.remote(own_node()))
        follower = LogFollower(name, record, node_address)
        facts: EngineFacts = control.get(supervisor.start.remote())
    except (RayError, EngineDead) as error:
        ray.kill(supervisor)
        if follower is not None:
            follower.finish()
        raise typed_error(error, f"engine {name}") from error
    return supervisor, follower, replace(facts, record=record)


def _make_supervisor(options: dict[str, Any], name: str, arguments: dict[str, Any]) -> Any:
    """The Ray handle of a new Supervisor. Raises ConfigError if a living one has its name."""
    from raydix.runtime.actors.supervision.supervisor import SupervisorActor

    def make() -> Any:
        return ray.remote(SupervisorActor).options(**options).remote(**arguments)

    try:
        return once_name_is_free(make, lambda: _is_alive(options["name"]))
    except ValueError as error:
        raise ConfigError(
            f"The name {name} is taken: an engine of this Ray cluster has it. "
            "Give this one another (--name, or name=... in Python)."
        ) from error


def _is_alive(actor: str) -> bool:
    try:
        ray.get(
            ray.get_actor(actor, namespace=NAMESPACE).__ray_call__.remote(answer),
            timeout=_ALIVE_S,
        )
    except (ValueError, RayActorError):
        return False
    except GetTimeoutError:
        return True
    return True
