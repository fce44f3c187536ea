"""`raydix ingress`: HTTP for several engines of one model."""

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.actors.log_format import format_json, format_text
from raydix.runtime.actors.supervision.restarts import DRAIN_S
from raydix.runtime.cli.console_log import logging_to_console
from raydix.runtime.cli.http_front import (
    CorsOrigins,
    HttpOptions,
    KeyFile,
    ModelName,
    Routing,
    loop_factory,
    read_http_options,
    require_packages,
    serving_http,
)
from raydix.runtime.cli.listen_options import SecretFile, split_connect
from raydix.runtime.cli.options import Address
from raydix.runtime.cli.serve import LogJson
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.paths import model_label
from raydix.runtime.config.policies import RoutingPolicyName

if TYPE_CHECKING:
    from raydix.runtime.api.service import AsyncService

logger = logging.getLogger(__name__)

Engines = Annotated[
    list[str],
    typer.Argument(
        help="Engines of one model: NAME of this host, or NAME@HOST:PORT. Each is used "
        "as soon as it is there.",
        metavar="NAME...",
        show_default=False,
    ),
]
HttpAddress = Annotated[
    str,
    typer.Option(
        "--http", help="Where to listen. Beyond loopback with --keys.", metavar="HOST:PORT"
    ),
]
IngressDrainS = Annotated[
    float,
    typer.Option("--drain-s", min=0.0, help="Seconds for requests to end after Ctrl-C."),
]


def ingress(
    engines: Engines,
    *,
    http: HttpAddress = "127.0.0.1:8000",
    address: Address = None,
    secret_file: SecretFile = None,
    keys: KeyFile = None,
    model_name: ModelName = None,
    cors_origins: CorsOrigins = None,
    routing: Routing = RoutingPolicyName.KV,
    drain_s: IngressDrainS = DRAIN_S,
    log_json: LogJson = False,
) -> None:
    """Serve HTTP for several engines of one model until Ctrl-C.

    The first named engine that answers decides which model it is; those of others are left out. A
    request goes to the engine whose first token is predicted to come soonest, by what it caches
    and has to do. If an engine ends, its streams go on at another one; once it is
    back, it is used again. Any number of ingresses may serve the same engines.
    """
    options = HttpOptions(http, None, keys, model_name, tuple(cors_origins or ()))
    service = service_of(engines, address, secret_file, routing)
    require_packages(options)
    with (
        logging_to_console(format_json if log_json else format_text, "ingress"),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_serve_until_stopped(service, options, drain_s))


def service_of(
    engines: list[str],
    cluster: str | None,
    secret_file: "SecretFile",
    routing: RoutingPolicyName = RoutingPolicyName.KV,
) -> "AsyncService":
    """The handle on engines that are named so. Raises ConfigError."""
    from raydix.runtime.api.service import AsyncService

    places = [split_connect(each) for each in engines]
    names = [name for name, _ in places]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)} is named twice; expected each engine once.")
    return AsyncService(dict(places), secret_file, cluster, routing)


async def _serve_until_stopped(
    service: "AsyncService", options: HttpOptions, drain_s: float
) -> None:
    """Serve until SIGINT or SIGTERM. Raises EngineDead if no engine is there to begin with."""
    # What is wrong with the options is told whether or not an engine is there.
    front = read_http_options(options, service.name)
    assert front is not None, "an ingress is for HTTP"
    async with service:
        await service.connected()
        if options.model_name is None:
            front = replace(front, model_name=model_label(await service.model_path()))
        async with serving_http(front, service, drain_s) as url:
            logger.info("HTTP is ready at %s/v1, model %s", url, front.model_name)
            await until_stopped()
            logger.info("stopping: requests may go on for %g s; Ctrl-C again ends them", drain_s)
