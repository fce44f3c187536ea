"""`raydix serve --nodes`: keep services up, each of several engines of one model."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.cli.service_roles import configs_by_role
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.names import check_name, name_part
from raydix.runtime.config.policies import RoutingPolicyName

if TYPE_CHECKING:
    from raydix.runtime.actors.service.former import FormerService
    from raydix.runtime.actors.service.owner import EngineService
    from raydix.runtime.actors.service.scale import ScaleRule
    from raydix.runtime.cli.http_front import HttpFront

logger = logging.getLogger(__name__)

_TELL_S = 0.2
"""The time for those that wait for a service's end to be told."""


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


def rule_of(nodes: int | None, autoscale: str | None, num_models: int) -> "ScaleRule | None":
    """How many engines the options ask for; None: one, which is no service. Raises ConfigError.

    Of several models each is a service, of one engine unless the options say more.
    """
    from raydix.runtime.actors.service.scale import ScaleRule

    if nodes is not None and autoscale is not None:
        raise ConfigError(
            "--nodes and --autoscale both say how many engines there are to be; expected one of "
            "them. Leave --nodes out to have as many as the load asks for."
        )
    if nodes is not None:
        return ScaleRule(fewest=nodes, most=nodes)
    if autoscale is None:
        return ScaleRule(fewest=1, most=1) if num_models > 1 else None
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


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What services are to be kept up."""

    name: str
    """The name of the service; of several, what those of all models begin with."""
    address: str | None
    """The address of the Ray cluster; None: the one at hand, else a private one."""
    rule: "ScaleRule"
    """How many engines there are to be, those for prefill among them."""
    drain_s: float
    routing: RoutingPolicyName
    """How its ingresses choose the engine of a request."""
    num_prefill: int | None = None
    """How many engines have the role prefill; None: as the configuration says, all or none."""


def service_names(name: str, models: Sequence[str]) -> dict[str, str]:
    """What the service of each model is called: by the name alone where there is but one.

    Raises ConfigError.
    """
    if len(models) == 1:
        names = {models[0]: name}
    else:
        names = {model: f"{name}-{name_part(model)}" for model in models}
    if len(set(names.values())) < len(models):
        raise ConfigError(
            f"Two of the models {', '.join(models)} would be services of one name. Give them other "
            "names by --model-name."
        )
    for model, each in names.items():
        check_name(each, "--name" if len(names) == 1 else f"the service of model {model!r}")
    return names


def require_one_cluster(configs: Collection[EngineConfig]) -> None:
    """Raise ConfigError if configurations that are to share a cluster ask for different ones."""
    first, *others = configs
    if any(each.ray != first.ray for each in others):
        raise ConfigError(
            "The configurations have different sections ray, but their engines are on one cluster. "
            "Let these sections be equal."
        )


async def serve_services(
    configs: Mapping[str, EngineConfig], options: ServiceOptions, front: "HttpFront | None"
) -> None:
    """Keep a service of each model up until SIGINT, SIGTERM or a later version of all of them.

    configs: by what clients call the model. If the name is that of a running service, its engines
    are replaced one after the other. Raises ConfigError, CheckpointError, or EngineDead.
    """
    from raydix.runtime.actors.bootstrap.cluster import join_cluster
    from raydix.runtime.actors.service.desk import find_former

    names = service_names(options.name, list(configs))
    formers = {model: await find_former(name) for model, name in names.items()}
    ray = next(iter(configs.values())).ray
    cluster = await asyncio.to_thread(join_cluster, options.address, ray)
    try:
        followed = [names[model] for model, each in formers.items() if each is not None]
        await _clear_front(front, options.name, names.values(), followed)
        services = {
            model: _service_of(config, names[model], options, formers[model])
            for model, config in configs.items()
        }
        await _keep_up(services, options, front)
    finally:
        if cluster is not None:
            await asyncio.to_thread(cluster.stop)


async def _clear_front(
    front: "HttpFront | None", name: str, names: Collection[str], followed: Collection[str]
) -> None:
    from raydix.runtime.actors.service.running import running_services
    from raydix.runtime.cli.http_front import clear_service_front

    running = {*await running_services(), *followed}
    await clear_service_front(front, name, names, running)


def _service_of(
    config: EngineConfig, name: str, options: ServiceOptions, former: "FormerService | None"
) -> "EngineService":
    from raydix.runtime.actors.bootstrap.launch import check_config, pinned
    from raydix.runtime.actors.service.owner import EngineService
    from raydix.runtime.actors.service.ray_launcher import RayLauncher
    from raydix.runtime.actors.service.roles import ServiceRoles
    from raydix.runtime.actors.service.scale import Scaler
    from raydix.runtime.actors.supervision.restarts import Supervision

    # The ports of Ray were for the cluster, which each engine joins.
    ports = {"metrics_port": None, "dashboard_port": None}
    config = pinned(load_config(config, {"ray": ports}))
    supervision = Supervision(drain_timeout_s=options.drain_s)
    configs = configs_by_role(config, options.num_prefill)
    launcher = RayLauncher(name, configs, supervision, checking=check_config(config))

    roles = ServiceRoles(usual=config.role, num_prefill=options.num_prefill or 0)
    fewest, most = options.rule.fewest - roles.num_prefill, options.rule.most - roles.num_prefill
    rule = replace(options.rule, fewest=fewest, most=most)
    num_slots = config.parallel.dp * config.scheduler.max_running_requests
    return EngineService(name, launcher, Scaler(rule, num_slots), roles, former)


async def _keep_up(
    services: "Mapping[str, EngineService]", options: ServiceOptions, front: "HttpFront | None"
) -> None:
    """Run the services of all models, and HTTP for them once each has an engine that serves."""
    running = [
        asyncio.create_task(_run(each), name=f"service-{each.name}") for each in services.values()
    ]
    serving = asyncio.create_task(_serving(services.values()), name="serving")
    try:
        ending = asyncio.create_task(until_stopped(_ended(running)))
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if any(each.is_over for each in services.values()):
            # Its task ends a moment later, with the error if it has failed.
            await asyncio.wait({ending}, timeout=2 * _TELL_S)
        # One that ends is waited for no longer, so that all may have ended.
        if ending.done() or all(each.is_over for each in services.values()):
            await ending
        else:
            await _serve_until(ending, services, options, front)
    finally:
        for service in services.values():
            service.stop()
        serving.cancel()
        await asyncio.gather(*running, serving, return_exceptions=True)


async def _run(service: "EngineService") -> None:
    """Run a service, and answer by its name until it has ended: a later version takes that then."""
    from raydix.runtime.actors.service.desk import answering

    async with answering(service):
        try:
            await service.run()
        finally:
            # Whoever waits for the end hears of it before the links close.
            await asyncio.sleep(_TELL_S)


async def _serve_until(
    ending: "asyncio.Task[None]",
    services: "Mapping[str, EngineService]",
    options: ServiceOptions,
    front: "HttpFront | None",
) -> None:
    from raydix.runtime.api.service import AsyncService
    from raydix.runtime.api.service_name import ServiceName
    from raydix.runtime.cli.http_front import serving_http

    def is_followed() -> bool:
        return all(each.has_given_way or each.has_former for each in services.values())

    async with contextlib.AsyncExitStack() as handles:
        engines = {
            model: await handles.enter_async_context(
                AsyncService(ServiceName(service.name), routing=options.routing)
            )
            for model, service in services.items()
        }
        front_end = serving_http(front, options.name, engines, options.drain_s, is_followed)
        url = await handles.enter_async_context(front_end)
        for service in services.values():
            logger.info(
                "service %s is ready; raydix status shows its engines   Ctrl-C stops it",
                service.name,
            )
        if url is not None:
            logger.info("HTTP is ready at %s/v1, model %s", url, ", ".join(engines))
        await ending


async def _serving(services: "Collection[EngineService]") -> None:
    """Return once each of the services has an engine that serves, or has ended."""

    async def begun(service: "EngineService") -> None:
        waits = {asyncio.create_task(service.serving()), asyncio.create_task(service.ended())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    await asyncio.gather(*map(begun, services))


async def _ended(running: "Sequence[asyncio.Task[None]]") -> None:
    await asyncio.gather(*map(asyncio.shield, running))
