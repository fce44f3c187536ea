"""`raydix serve --nodes`: keep a service of several engines up."""

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import RoutingPolicyName

if TYPE_CHECKING:
    from raydix.runtime.actors.service.former import FormerService
    from raydix.runtime.actors.service.scale import ScaleRule
    from raydix.runtime.cli.http_front import HttpFront

logger = logging.getLogger(__name__)


Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=1,
        help="Keep one engine on each of N nodes of the Ray cluster, as one service. With the name "
        "of a running service: replace its engines one after the other.",
        metavar="N",
    ),
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        "--autoscale",
        help="The same on MIN to MAX nodes: one more while new requests would wait for longer than "
        "WAIT_S (2), one fewer once the others could hold all that runs for IDLE_S (60).",
        metavar="MIN:MAX[:WAIT_S:IDLE_S]",
    ),
]


def rule_of(nodes: int | None, autoscale: str | None) -> "ScaleRule | None":
    """How many engines the options ask for; None: one, which is no service. Raises ConfigError."""
    from raydix.runtime.actors.service.scale import ScaleRule

    if nodes is not None and autoscale is not None:
        raise ConfigError("--nodes and --autoscale both say how many engines there are to be.")
    if nodes is not None:
        return ScaleRule(fewest=nodes, most=nodes)
    if autoscale is None:
        return None
    fewest, most, *seconds = autoscale.split(":") if ":" in autoscale else ("", "")
    try:
        waits = dict(zip(("wait_s", "idle_s"), map(float, seconds), strict=bool(seconds)))
        rule = ScaleRule(fewest=int(fewest), most=int(most), **waits)
    except ValueError:
        rule = None
    is_timed = rule is not None and all(0 <= s < math.inf for s in (rule.wait_s, rule.idle_s))
    if rule is None or not 1 <= rule.fewest <= rule.most or not is_timed:
        raise ConfigError(
            f"--autoscale is {autoscale!r}; expected MIN:MAX or MIN:MAX:WAIT_S:IDLE_S, with MIN of "
            "1 or more, MAX not below it and finite seconds, such as 1:4 or 1:4:0.5:300."
        )
    return rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What service is to be kept up."""

    name: str
    address: str | None
    """The address of the Ray cluster; None: the one at hand, else a private one."""
    rule: "ScaleRule"
    """How many engines there are to be."""
    drain_s: float
    routing: RoutingPolicyName
    """How its ingresses choose the engine of a request."""


async def serve_service(
    config: EngineConfig, options: ServiceOptions, front: "HttpFront | None"
) -> None:
    """Keep a service up until SIGINT, SIGTERM or a later version of it.

    If the name is that of a running service, its engines are replaced one after the other. Raises
    ConfigError, CheckpointError, or EngineDead.
    """
    from raydix.runtime.actors.bootstrap.cluster import join_cluster
    from raydix.runtime.actors.service.desk import find_former
    from raydix.runtime.actors.service.names import check_service_name

    check_service_name(options.name)
    former = await find_former(options.name)
    cluster = await asyncio.to_thread(join_cluster, options.address, config.ray)
    try:
        await _serve_on_cluster(config, options, front, former)
    finally:
        if cluster is not None:
            await asyncio.to_thread(cluster.stop)


async def _serve_on_cluster(
    config: EngineConfig,
    options: ServiceOptions,
    front: "HttpFront | None",
    former: "FormerService | None",
) -> None:
    from raydix.runtime.actors.bootstrap.launch import check_config, pinned
    from raydix.runtime.actors.service.desk import answering
    from raydix.runtime.actors.service.owner import EngineService
    from raydix.runtime.actors.service.ray_launcher import RayLauncher
    from raydix.runtime.actors.service.running import running_services
    from raydix.runtime.actors.service.scale import Scaler
    from raydix.runtime.actors.supervision.restarts import Supervision
    from raydix.runtime.api.service import AsyncService
    from raydix.runtime.api.service_name import ServiceName
    from raydix.runtime.cli.http_front import check_service_front, serving_http

    others = (await running_services()).keys() - {options.name}
    await check_service_front(front, is_later=former is not None, others=others)
    # The ports of Ray were for the cluster, which each engine joins.
    ports = {"metrics_port": None, "dashboard_port": None}
    config = pinned(load_config(config, {"ray": ports}))
    launcher = RayLauncher(
        options.name,
        config,
        Supervision(drain_timeout_s=options.drain_s),
        checking=check_config(config),
    )
    num_slots = config.parallel.dp * config.scheduler.max_running_requests
    scaler = Scaler(options.rule, num_slots)
    service = EngineService(options.name, launcher, scaler, former)
    async with answering(service):
        running = asyncio.create_task(service.run(), name="service")
        serving = asyncio.create_task(service.serving(), name="serving")
        try:
            ending = asyncio.create_task(until_stopped(_ended(running)))
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                async with (
                    AsyncService(ServiceName(options.name), routing=options.routing) as handle,
                    serving_http(
                        front,
                        handle,
                        options.drain_s,
                        lambda: service.has_given_way or service.has_former,
                    ) as url,
                ):
                    _tell_ready(options.name, front, url)
                    await ending
            else:
                ending.result()
        finally:
            service.stop()
            serving.cancel()
            await asyncio.gather(running, serving, return_exceptions=True)


async def _ended(running: "asyncio.Task[None]") -> None:
    await asyncio.shield(running)


def _tell_ready(name: str, front: "HttpFront | None", url: str | None) -> None:
    logger.info("service %s is ready; raydix status shows its engines   Ctrl-C stops it", name)
    if front is not None:
        logger.info("HTTP is ready at %s/v1, model %s", url, front.model_name)
