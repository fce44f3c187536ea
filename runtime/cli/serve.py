"""`raydix serve`: keep an engine up."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from raydix.runtime.actors.supervision.restarts import DRAIN_S
from raydix.runtime.cli.config_check import print_report
from raydix.runtime.cli.engine_access import start_engine
from raydix.runtime.cli.http_front import (
    Http,
    HttpFront,
    HttpOptions,
    KeyFile,
    ModelName,
    NumReplicas,
    loop_factory,
    ray_serve_environment,
    read_http_options,
    serving_http,
)
from raydix.runtime.cli.options import (
    METRICS_PORT,
    Address,
    Lazy,
    Name,
    Settings,
    Source,
    lazy_storage,
    sections_of,
)
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config

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


def serve(
    source: Source = None,
    settings: Settings = None,
    *,
    name: Name = "raydix",
    address: Address = None,
    drain_s: DrainS = DRAIN_S,
    lazy: Lazy = False,
    dry_run: DryRun = False,
    http: Http = None,
    http_replicas: NumReplicas = None,
    keys: KeyFile = None,
    model_name: ModelName = None,
) -> None:
    """Start an engine and keep it up until Ctrl-C.

    Reach it with AsyncLLM.connect(NAME), or over HTTP. Ends with an error if the engine does.
    """
    config = load_config(source, lazy_storage(lazy, sections_of(settings)))
    options = HttpOptions(http, http_replicas, keys, model_name)
    front = read_http_options(options, config, address)
    if dry_run:
        print_report(config)
        return
    config = with_metrics_port(config, address)
    with ray_serve_environment(front), asyncio.Runner(loop_factory=loop_factory(front)) as runner:
        runner.run(serve_until_stopped(config, name, address, drain_s, front, Console()))


def with_metrics_port(config: EngineConfig, address: str | None) -> EngineConfig:
    """The configuration with the port that Prometheus is told once, where it names none.

    Whoever joins a cluster uses its ports.
    """
    from raydix.runtime.actors.bootstrap.cluster import is_free_port, named_cluster

    if config.ray.metrics_port is not None or named_cluster(address) is not None:
        return config
    if not is_free_port(METRICS_PORT):
        print(f"Port {METRICS_PORT} is taken; metrics have another one.")
        return config
    return load_config(config, {"ray": {"metrics_port": METRICS_PORT}})


async def serve_until_stopped(
    config: EngineConfig,
    name: str,
    address: str | None,
    drain_s: float,
    front: HttpFront | None,
    console: Console,
) -> None:
    """Keep an engine up until SIGINT or SIGTERM, then stop it cleanly.

    Raises EngineDead, saying why, if it ends before.
    """
    async with (
        await start_engine(config, name, address, drain_s=drain_s) as engine,
        serving_http(front, engine, drain_s) as url,
    ):
        console.print(
            f"Engine {name} is ready: raydix generate --connect {name} --prompt ...   "
            "Ctrl-C stops it."
        )
        if front is not None:
            console.print(f"HTTP is ready at {url}/v1, model {front.model_name}.")
        await until_stopped(engine.wait_ended())
        console.print(f"Stopping; requests may go on for {drain_s:g} s. Ctrl-C again ends them.")
