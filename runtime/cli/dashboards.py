"""`raydix dashboards`: write what Grafana and Prometheus need to watch engines."""

from pathlib import Path
from typing import Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.cli.options import METRICS_PORT

Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the files.", metavar="DIR")
]  # fmt: skip
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help=f"Where metrics are, as `raydix serve` prints it. Repeatable. "
        f"Default: localhost:{METRICS_PORT}.",
        metavar="HOST:PORT",
    ),
]
FromHttp = Annotated[
    bool,
    typer.Option(
        "--http", help="The targets are servers of `raydix serve --http`, not Ray's agents."
    ),
]
RayFolder = Annotated[
    Path | None,
    typer.Option(
        "--ray",
        help="Put the dashboard beside Ray's own; DIR is the cluster's temporary folder, as a "
        "rule /tmp/ray.",
        metavar="DIR",
    ),
]
_RAYS_DASHBOARDS = "session_latest/metrics/grafana/dashboards"


def dashboards(
    out: Out = None, targets: Targets = None, http: FromHttp = False, ray: RayFolder = None
) -> None:
    """Write a Grafana dashboard, Prometheus alerts and a scrape configuration.

    They are made from the same definitions as docs/metrics.md, which lists every metric.
    """
    from raydix.runtime.dashboards.files import write_dashboard, write_files
    from raydix.runtime.dashboards.panels import Endpoint

    if out is None and ray is None:
        raise ConfigError("nothing says where to write. Give --out DIR, --ray DIR, or both.")
    written = []
    if out is not None:
        endpoint = Endpoint.HTTP if http else Endpoint.RAY
        try:
            written += write_files(out, endpoint, targets or [f"localhost:{METRICS_PORT}"])
        except OSError as error:
            raise ConfigError(
                f"--out {out} cannot be written: {error.strerror}. Name a folder of yours."
            ) from error
    if ray is not None:
        folder = ray / _RAYS_DASHBOARDS
        if not folder.is_dir():
            raise ConfigError(
                f"{folder} does not exist. Give the temporary folder of a Ray cluster that has its "
                "dashboard."
            )
        written.append(write_dashboard(folder))
    for path in written:
        print(path)
