"""`raydix config ...`: about the configuration."""

import json
from typing import Annotated

import typer

from raydix.runtime.cli.config_check import print_report
from raydix.runtime.cli.http_front import Http
from raydix.runtime.cli.listen_options import Listen
from raydix.runtime.cli.options import AsJson, Settings, Source, bytes_of, sections_of
from raydix.runtime.cli.port_check import require_distinct_ports
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config

app = typer.Typer(help="About the configuration.", no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration."""
    print(json.dumps(EngineConfig.model_json_schema(), indent=2))


@app.command()
def check(
    source: Source = None,
    settings: Settings = None,
    *,
    gpu: Annotated[
        str | None,
        typer.Option(help="The kind of GPU, as H100 or 'A100 80GB', in place of --gpu-memory."),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(help="Memory of each GPU, as 80GiB. Default: that of this machine's, if any."),
    ] = None,
    node_memory: Annotated[
        str | None,
        typer.Option(help="Memory that the node can give. Default: what is free here."),
    ] = None,
    http: Http = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Say what an engine would take: weights, pages and tokens by tier. Nothing is started.

    Needs no GPU and no weights, but the checkpoint's config.json. --http and --listen as they will
    be given to `raydix serve`: their ports are compared. Exits with 1 if something does not fit.
    """
    config = load_config(source, sections_of(settings))
    require_distinct_ports(config, http=http, listen=listen)
    print_report(
        config,
        gpu=gpu,
        device_bytes=bytes_of("--gpu-memory", gpu_memory),
        node_bytes=bytes_of("--node-memory", node_memory),
        as_json=as_json,
    )
