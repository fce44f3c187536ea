"""`raydix ingress`: HTTP for several engines, of one model or of several."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
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
    model_names_of,
    read_http_options,
    require_packages,
    serving_http,
)
from raydix.runtime.cli.listen_options import SecretFile, split_connect
from raydix.runtime.cli.options import Address
from raydix.runtime.cli.serve import LogJson
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.names import check_name
from raydix.runtime.config.policies import RoutingPolicyName

if TYPE_CHECKING:
    from raydix.runtime.api.service import AsyncService

logger = logging.getLogger(__name__)

_ALL = "/*"
"""Behind the name of a service: all of its engines."""

Engines = Annotated[
    list[str],
    typer.Argument(
        help="Engines of one model: NAME of this host, or NAME@HOST:PORT; NAME/* are all engines "
        "of a service of the Ray cluster. Each is used as soon as it is there. MODEL=NAME says of "
        "which model it is, where several are served.",
        metavar="[MODEL=]NAME...",
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
    """Serve HTTP for several engines, of one model or of several, until Ctrl-C.

    Of several the field `model` of a request picks one. Which weights a model has decides the first
    of its engines that answers; those with others are left out. A request goes to the engine whose
    first token is predicted to come soonest, by what it caches and has to do. If an engine ends,
    its streams go on at another one; once it is back, it is used again. Any number of ingresses may
    serve the same engines.
    """
    by_model = engines_by_model(engines)
    options = HttpOptions(http, None, keys, tuple(model_name or ()), tuple(cors_origins or ()))
    if None not in by_model and options.model_names:
        raise ConfigError("--model-name and MODEL=NAME both say what the models are called.")
    services = {
        model: service_of(names, address, secret_file, routing) for model, names in by_model.items()
    }
    require_packages(options)
    with (
        logging_to_console(format_json if log_json else format_text, "ingress"),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_serve_until_stopped(services, options, drain_s))


def engines_by_model(engines: Sequence[str]) -> dict[str | None, list[str]]:
    """The engines of each model as `MODEL=NAME` names them; None: of the one that has no name.

    Raises ConfigError.
    """
    by_model: dict[str | None, list[str]] = {}
    for each in engines:
        model, mark, name = each.partition("=")
        by_model.setdefault(model if mark else None, []).append(name if mark else each)
    if None in by_model and len(by_model) > 1:
        raise ConfigError(
            f"{', '.join(by_model[None])} is of no model, but others are. Write MODEL=NAME for "
            "each engine, or for none."
        )
    if "" in by_model or not all(map(all, by_model.values())):
        raise ConfigError("An engine is named without its model or name; expected MODEL=NAME.")
    names = [_name_of(name) for each in by_model.values() for name in each]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)} is named twice; expected each engine once.")
    return by_model


def _name_of(engine: str) -> str:
    """Under which name an engine or a whole service is named once. Raises ConfigError."""
    if not engine.endswith(_ALL):
        return split_connect(engine)[0]
    check_name(engine.removesuffix(_ALL), f"The service of {engine}")
    return engine


def service_of(
    engines: list[str],
    cluster: str | None,
    secret_file: "SecretFile",
    routing: RoutingPolicyName = RoutingPolicyName.KV,
) -> "AsyncService":
    """The handle on engines of one model that are named so. Raises ConfigError."""
    from raydix.runtime.api.service import AsyncService
    from raydix.runtime.api.service_name import ServiceName

    services = [each for each in engines if each.endswith(_ALL)]
    if services:
        if len(engines) > 1:
            raise ConfigError(
                f"{services[0]} is a whole service; expected no other engines of its model."
            )
        return AsyncService(ServiceName(services[0].removesuffix(_ALL)), None, cluster, routing)
    places = dict(split_connect(each) for each in engines)
    return AsyncService(places, secret_file, cluster, routing)


async def _serve_until_stopped(
    services: "Mapping[str | None, AsyncService]", options: HttpOptions, drain_s: float
) -> None:
    """Serve until SIGINT or SIGTERM. Raises EngineDead if a model has no engine to begin with."""
    # What is wrong with the options is told whether or not an engine is there.
    front = read_http_options(options)
    assert front is not None, "an ingress is for HTTP"
    async with contextlib.AsyncExitStack() as stack:
        by_model = {}
        for model, service in services.items():
            await stack.enter_async_context(service)
            await service.connected()
            if model is None:
                [model] = model_names_of(options.model_names, [await service.model_path()])
            by_model[model] = service
        serving = serving_http(front, "ingress", by_model, drain_s)
        url = await stack.enter_async_context(serving)
        logger.info("HTTP is ready at %s/v1, model %s", url, ", ".join(by_model))
        await until_stopped()
        logger.info("stopping: requests may go on for %g s; Ctrl-C again ends them", drain_s)
