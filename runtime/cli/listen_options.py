"""Options by which clients on other hosts reach an engine: where it listens, and the secret."""

from pathlib import Path
from typing import Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.config.names import NAMES_ARE, is_engine_name

Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        help="Let clients on other hosts connect there. Beyond loopback with a secret.",
        metavar="HOST:PORT",
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        help="File of mode 0600 with the secret between an engine and clients on other hosts. "
        "Default: RAYDIX_SECRET, or the file that RAYDIX_SECRET_FILE names.",
        metavar="FILE",
    ),
]


def split_connect(connect: str) -> tuple[str, str | None]:
    """Name and address of `NAME@HOST:PORT`; of `NAME` the address is None. Raises ConfigError."""
    name, at, address = connect.partition("@")
    if not is_engine_name(name):
        raise ConfigError(
            f"The engine is named {connect!r:.120}; expected NAME or NAME@HOST:PORT. NAME is "
            f"{NAMES_ARE}; behind that of a service there may be /NUMBER."
        )
    if not at:
        return connect, None
    try:
        TcpAddress.parse(address)
    except ConfigError as error:
        raise ConfigError(
            f"The engine is named {connect!r}: {error} Expected NAME or NAME@HOST:PORT."
        ) from error
    return name, address
