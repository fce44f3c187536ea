"""`raydix serve --nodes`: keep a service of several engines up."""

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config

if TYPE_CHECKING:
    from raydix.runtime.actors.service.former import FormerService
    from raydix.runtime.cli.http_front import HttpFront

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What service is to be kept up."""

    name: str
    address: str | None
    """The address of the Ray cluster; None: the one at hand, else a private one."""
    num_nodes: int
    drain_s: float


async def serve_service(
    config: EngineConfig, options: ServiceOptions, front: "HttpFront | None"
) -> None:
    """Keep a service up until SIGINT, SIGTERM or a later version of it.

    If the name is that of a running service, its engines are replaced one after the other. Raises
    ConfigError, CheckpointError, or EngineDead.
    """
    from raydix.runtime.actors.bootstrap.cluster import join_cluster
    from raydix.runtime.actors.service.desk import find_former

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
    from raydix.runtime.actors.supervision.restarts import Supervision
    from raydix.runtime.api.service import AsyncService
    from raydix.runtime.api.service_name import ServiceName
    from raydix.runtime.cli.http_front import serving_http

    # The ports of Ray were for the cluster, which each engine joins.
    ports = {"metrics_port": None, "dashboard_port": None}
    config = pinned(load_config(config, {"ray": ports}))
    launcher = RayLauncher(
        options.name,
        config,
        Supervision(drain_timeout_s=options.drain_s),
        checking=check_config(config),
    )
    service = EngineService(options.name, launcher, options.num_nodes, former)
    async with answering(service):
        running = asyncio.create_task(service.run(), name="service")
        serving = asyncio.create_task(service.serving(), name="serving")
        try:
            ending = asyncio.create_task(until_stopped(_ended(running)))
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                async with (
                    AsyncService(ServiceName(options.name)) as handle,
                    serving_http(front, handle, options.drain_s) as url,
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
