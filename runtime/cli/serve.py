"""`raydix serve`: keep an engine up."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydix.errors import ConfigError, EngineDead, EngineStopped
from raydix.runtime.actors.log_format import format_json, format_text
from raydix.runtime.actors.supervision.restarts import DRAIN_S
from raydix.runtime.cli.config_check import print_report
from raydix.runtime.cli.console_log import logging_to_console
from raydix.runtime.cli.engine_access import start_engine
from raydix.runtime.cli.http_front import (
    CorsOrigins,
    Http,
    HttpFront,
    HttpOptions,
    KeyFile,
    ModelName,
    NumReplicas,
    Routing,
    loop_factory,
    model_names_of,
    ray_serve_environment,
    read_http_options,
    serving_http,
)
from raydix.runtime.cli.listen_options import Listen, SecretFile
from raydix.runtime.cli.options import (
    METRICS_PORT,
    Address,
    Lazy,
    Name,
    Settings,
    Sources,
    lazy_storage,
    sections_of,
)
from raydix.runtime.cli.port_check import require_distinct_ports
from raydix.runtime.cli.service import (
    Autoscale,
    Nodes,
    ServiceOptions,
    require_one_cluster,
    rule_of,
    serve_services,
)
from raydix.runtime.cli.service_roles import (
    PrefillNodes,
    configs_by_role,
    require_possible_roles,
    warn_if_alone,
)
from raydix.runtime.cli.stop_signal import deferring_signals, until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import RoutingPolicyName

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM

logger = logging.getLogger(__name__)

_ACTOR = "serve"

DrainS = Annotated[
    float,
    typer.Option(
        "--drain-s",
        min=0.0,
        help="Seconds for requests to end after Ctrl-C, then for writes to storage.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what the engine would take, and end.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="One JSON object per line instead of text.")
]


def serve(
    sources: Sources = None,
    settings: Settings = None,
    *,
    name: Name = "raydix",
    address: Address = None,
    drain_s: DrainS = DRAIN_S,
    lazy: Lazy = False,
    dry_run: DryRun = False,
    log_json: LogJson = False,
    listen: Listen = None,
    secret_file: SecretFile = None,
    http: Http = None,
    http_replicas: NumReplicas = None,
    keys: KeyFile = None,
    model_name: ModelName = None,
    cors_origins: CorsOrigins = None,
    nodes: Nodes = None,
    autoscale: Autoscale = None,
    prefill_nodes: PrefillNodes = None,
    routing: Routing = RoutingPolicyName.KV,
) -> None:
    """Start an engine, or one on each of several nodes, or those of several models, until Ctrl-C.

    Reach it with AsyncLLM.connect(NAME) here, with --listen also from other hosts, or over HTTP.
    Ends with an error if the engine does.
    """
    sections = lazy_storage(lazy, sections_of(settings))
    given: Sequence[str | None] = sources or [None]
    configs = load_all(given, sections)
    if secret_file is not None and listen is None:
        raise ConfigError("--secret-file is for clients on other hosts. Add --listen HOST:PORT.")
    rule = rule_of(nodes, autoscale, len(configs))
    if rule is not None and listen is not None:
        raise ConfigError("--listen is for one engine; those of a service listen on their nodes.")
    if rule is None and routing is not RoutingPolicyName.KV:
        raise ConfigError("--routing chooses among several engines. Add --nodes N or --autoscale.")
    require_possible_roles(prefill_nodes, rule, routing)
    options = HttpOptions(
        http, http_replicas, keys, tuple(model_name or ()), tuple(cors_origins or ())
    )
    if rule is not None:
        options = options.of_service(len(configs))
    for config in configs:
        require_distinct_ports(config, http=http, listen=listen)
        configs_by_role(config, prefill_nodes)
    require_one_cluster(configs)
    front = read_http_options(options, address)
    models = model_names_of(model_name or (), [config.model.path for config in configs])
    if dry_run:
        for config in configs:
            print_report(config)
        return
    what: ServiceOptions | EngineOptions
    if rule is None:
        what = EngineOptions(name, address, drain_s, listen, secret_file)
    else:
        what = ServiceOptions(name, address, rule, drain_s, routing, prefill_nodes)
    with logging_to_console(format_json if log_json else format_text, _ACTOR):
        _keep_up(dict(zip(models, configs, strict=True)), what, front)


def load_all(sources: Sequence[str | None], sections: Mapping[str, Any]) -> list[EngineConfig]:
    """The configurations of all models. Raises ConfigError, of several with the source."""
    configs = []
    for source in sources:
        try:
            configs.append(load_config(source, sections))
        except ConfigError as error:
            if len(sources) == 1:
                raise
            raise ConfigError(f"{source}: {error}") from error
    return configs


def _keep_up(
    configs: Mapping[str, EngineConfig],
    what: "ServiceOptions | EngineOptions",
    front: HttpFront | None,
) -> None:
    """Keep an engine or services up, by what clients call the models, until they are to end."""
    [(model, config), *others] = configs.items()
    with (
        ray_serve_environment(front),
        having_metrics_port(config, what.address) as first,
        asyncio.Runner(loop_factory=None if front is None else loop_factory()) as runner,
    ):
        if isinstance(what, ServiceOptions):
            runner.run(serve_services({model: first, **dict(others)}, what, front))
        else:
            runner.run(serve_until_stopped(first, what, front, model))


@contextlib.contextmanager
def having_metrics_port(config: EngineConfig, address: str | None) -> Iterator[EngineConfig]:
    """The configuration with the port that Prometheus is told once, where it names none.

    Whoever joins a cluster uses its ports.
    """
    with deferring_signals():
        from raydix.runtime.actors.bootstrap.cluster import is_free_port, named_cluster

    if config.ray.metrics_port is not None or named_cluster(address) is not None:
        yield config
        return
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            # Ray listens only seconds later: until then a name that ends with this process says
            # that the port is spoken for.
            claim.bind(f"\0raydix-metrics-{METRICS_PORT}")
        except OSError:
            is_ours = False
        else:
            is_ours = is_free_port(METRICS_PORT)
        if is_ours:
            yield load_config(config, {"ray": {"metrics_port": METRICS_PORT}})
        else:
            logger.warning("port %d is taken; metrics have another one", METRICS_PORT)
            yield config


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which engine is to be kept up, and where clients reach it."""

    name: str
    address: str | None
    """The address of the Ray cluster; None: the one at hand, else a private one."""
    drain_s: float
    listen: str | None = None
    secret_file: Path | None = None


async def serve_until_stopped(
    config: EngineConfig, options: EngineOptions, front: HttpFront | None, model_name: str
) -> None:
    """Keep an engine up until SIGINT or SIGTERM, then stop it cleanly.

    `model_name`: what HTTP clients call its model.
    Returns also if somebody else stops it. Raises EngineDead, saying why, if it ends otherwise, and
    StoppedWhileStarting.
    """
    drain_s = options.drain_s
    warn_if_alone(config, options.address)
    async with await start_engine(
        config,
        options.name,
        options.address,
        drain_s=drain_s,
        listen=options.listen,
        secret_file=options.secret_file,
    ) as engine:
        async with serving_http(front, options.name, {model_name: engine}, drain_s) as url:
            await _tell_ready(engine, options.name)
            if front is not None:
                logger.info("HTTP is ready at %s/v1, model %s", url, model_name)
            try:
                await until_stopped(engine.wait_ended())
            except EngineStopped as stopped:
                logger.info("%s", stopped)
                return
            logger.info("stopping: requests may go on for %g s; Ctrl-C again ends them", drain_s)
            # For clients of all kinds at once: HTTP takes no connection meanwhile.
            draining = asyncio.create_task(_drain(engine), name="drain")
        await draining


async def _tell_ready(engine: "AsyncLLM", name: str) -> None:
    logger.info(
        "engine %s is ready: raydix generate --connect %s --prompt ...   Ctrl-C stops it",
        name,
        name,
    )
    listens_at = await engine.listens_at()
    if listens_at is not None:
        logger.info(
            "for clients elsewhere: raydix generate --connect %s@%s --secret-file FILE ...",
            name,
            _dialled(listens_at),
        )


async def _drain(engine: "AsyncLLM") -> None:
    # Whoever has ended has nothing left to drain.
    with contextlib.suppress(EngineDead):
        await (await engine.place.find()).call("drain")


def _dialled(listens_at: str) -> str:
    """What clients dial: where every interface is listened at, this host's name."""
    host, _, port = listens_at.rpartition(":")
    is_any = host.strip("[]") in (str(ipaddress.IPv4Address(0)), str(ipaddress.IPv6Address(0)))
    return f"{socket.gethostname()}:{port}" if is_any else listens_at
