"""Which web pages' scripts may ask the server: by default those of none."""

import re
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from raydix.errors import ConfigError

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """The origins, as browsers write them. Raises ConfigError for what no browser sends."""
    for origin in origins:
        if origin != ANY_ORIGIN and _ORIGIN.fullmatch(origin) is None:
            raise ConfigError(
                f"The origin {origin!r} is none that a browser sends; expected SCHEME://HOST or "
                "SCHEME://HOST:PORT in lower case, such as https://chat.example.org, without a "
                f"path, or {ANY_ORIGIN} for all."
            )
    return tuple(origins)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let scripts of pages from these origins read the answers; keys are asked for all the same.

    A browser's question whether it may ask comes without a key, and is answered before one is
    looked for.
    """
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=checked_origins(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "Retry-After-Ms"],
        )
