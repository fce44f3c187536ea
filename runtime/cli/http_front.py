"""The HTTP front of `raydix serve`: its options, checked before the engine starts."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.paths import model_label

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM
    from raydix.runtime.server.keys import Keys
    from raydix.runtime.server.listener import HttpAddress

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        help="Serve OpenAI's routes there, too: 127.0.0.1:8000. Beyond loopback with --keys.",
        metavar="HOST:PORT",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        help="YAML with the keys of tenants, monitor and admin, of mode 0600.",
        metavar="FILE",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model-name", help="What HTTP clients call the model. Default: its folder's name.",
        metavar="NAME",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpFront:
    """Where and to whom an engine is served over HTTP."""

    address: "HttpAddress"
    keys: "Keys | None"
    """None on loopback alone."""
    model_name: str


def read_http_options(
    http: str | None, key_file: Path | None, model_name: str | None, config: EngineConfig
) -> HttpFront | None:
    """What the options ask for; None without `--http`. Raises ConfigError."""
    if http is None:
        if key_file is not None or model_name is not None:
            raise ConfigError("--keys and --model-name are for HTTP. Add --http HOST:PORT.")
        return None
    try:
        from raydix.runtime.server.keys import load_keys
        from raydix.runtime.server.listener import HttpAddress
    except ImportError as error:
        raise ConfigError(
            f"--http needs packages that are not installed ({error}). "
            "Run pip install 'raydix[http]'."
        ) from error

    address = HttpAddress.parse(http)
    if key_file is None and not address.is_loopback:
        raise ConfigError(
            f"--http {http} is reached from other hosts; there every request needs a key. "
            "Add --keys FILE, or listen at 127.0.0.1."
        )
    keys = None if key_file is None else load_keys(key_file)
    return HttpFront(address, keys, model_name or model_label(config.model.path))


@contextlib.asynccontextmanager
async def serving_http(
    front: HttpFront | None, engine: "AsyncLLM", drain_s: float
) -> AsyncIterator[str | None]:
    """Serve the engine over HTTP meanwhile; yields the URL, or None without `--http`.

    At the end streams may go on for `drain_s`.
    """
    if front is None:
        yield None
        return
    from raydix.runtime.server.app import build_app
    from raydix.runtime.server.listener import listening

    app = build_app(engine, front.model_name, front.keys)
    async with listening(app, front.address, drain_s) as url:
        yield url
