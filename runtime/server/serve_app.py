"""The HTTP interface as a Ray Serve application: replicas that are clients of engines.

`serve run raydix.runtime.server.serve_app:app engine=NAME keys=FILE`, or the same `import_path`
and `args` in a config of `serve deploy`. Each replica reaches an engine as any other client
does, by its address and secret: Ray carries neither prompts nor tokens.
"""

import contextlib
import hashlib
import logging
import os
import pickle
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.log_sender import send_log
from raydix.runtime.actors.supervision.restarts import DRAIN_S
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.service import AsyncService
from raydix.runtime.api.service_name import ServiceName
from raydix.runtime.config.names import check_name
from raydix.runtime.config.policies import RoutingPolicyName
from raydix.runtime.garbage import spare_long_lived_objects
from raydix.runtime.server.app import build_app
from raydix.runtime.server.cross_origin import checked_origins
from raydix.runtime.server.keys import KeyJudge, load_keys
from raydix.runtime.server.serve_environment import DEREGISTER_S
from raydix.version import VERSION

logger = logging.getLogger(__name__)

_KILL_S = 5.0
"""The time past `drain_s` after which Ray Serve kills a replica, whose requests may have ended."""
_MAX_ONGOING = 1 << 16
"""The most requests at a replica: the bounded queue is the engine's, which answers 429."""


_MARK = "+"
_NOT_IN_NAMES = re.compile(r"[^\w.-]")


def serve_name(name: str) -> str:
    """What Ray Serve is told of a name: its logs are files that are called so."""
    return _NOT_IN_NAMES.sub("-", name)


def used_by(deployment: str) -> frozenset[str]:
    """The names of those whose engines a deployment uses, as `serve_name` says them."""
    _, *used = deployment.split(_MARK)
    return frozenset(used[:-1])


class ServeArguments(BaseModel):
    """What the application is told: `args` of Ray Serve's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    keys: Path
    """The file of keys, required because Ray Serve chooses where a replica listens."""
    engine: str = "raydix"
    service: str | None = None
    """The name of a service of this Ray cluster, all engines of which are used, in place of one."""
    models: dict[str, str] = Field(default_factory=dict)
    """Services of this Ray cluster by what clients call their models, in place of one engine."""
    routing: RoutingPolicyName = RoutingPolicyName.KV
    """How the engine of a request is chosen among those of a service."""
    address: str | None = None
    secret_file: Path | None = None
    """The file with the engine's secret; see `AsyncLLM.connect`, also for `address`."""
    model_name: str | None = None
    """The name by which clients call the model; None: the engine's name for it."""
    num_replicas: int = Field(default=1, ge=1)
    drain_s: float = Field(default=DRAIN_S, ge=0.0)
    """The time for which requests may go on when a replica ends."""
    cors_origins: tuple[str, ...] = ()
    """The origins of the web pages whose scripts may ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The application, whoever starts it."""

    engines: Mapping[str, AsyncLLM | AsyncService]
    """The handle on the engine of each model, or on several, by the model's name.

    Pickled, it connects anew where it is used.
    """
    keys: KeyJudge | None
    """The judge of keys; None only where nothing listens beyond loopback."""
    key_file: Path | None = None
    """The file whose changes the replicas read for themselves; None: they can read none.

    They need not be replaced for what it holds, then.
    """
    num_replicas: int
    drain_s: float
    origins: tuple[str, ...] = ()
    log_path: str | None = None
    """The path to which replicas log, as the engine's actors do; None: Ray Serve alone has it."""

    @property
    def deployment_name(self) -> str:
        """Equal for replicas that do the same: these need not be replaced by each other.

        It says whose engines they use: see `used_by`.
        """
        used = _MARK.join(serve_name(each.name) for each in self.engines.values())
        keys = self.key_file or self.keys
        said = (self.engines, keys, self.drain_s, self.origins, self.log_path)
        digest = hashlib.blake2b(VERSION.encode() + pickle.dumps(said), digest_size=8)
        return f"{HttpReplica.__name__}{_MARK}{used}{_MARK}{digest.hexdigest()}"

    def application(self, **actor_options: Any) -> Application:
        """What `serve.run` takes; `actor_options`: what Ray reserves for each replica."""
        deployment = serve.deployment(
            serve.ingress()(HttpReplica),
            name=self.deployment_name,
            num_replicas=self.num_replicas,
            ray_actor_options=actor_options,
            max_ongoing_requests=_MAX_ONGOING,
            graceful_shutdown_timeout_s=DEREGISTER_S + self.drain_s + _KILL_S,
            graceful_shutdown_wait_loop_s=0.1,
        )
        return deployment.bind(self.engines, self.keys, self.log_path, self.origins)


class HttpReplica:
    """One process that speaks HTTP for engines. It answers 503 while those of a model are away."""

    def __init__(
        self,
        engines: Mapping[str, AsyncLLM | AsyncService],
        keys: KeyJudge | None,
        log_path: str | None,
        origins: tuple[str, ...],
    ) -> None:
        self._engines = engines
        self._keys = keys
        self._log_path = log_path
        self._origins = origins

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The application of this replica, for which Ray Serve asks."""
        rank = serve.get_replica_context().rank.rank
        if self._log_path is not None:
            send_log(self._log_path, f"http{rank}")
        application = build_app(self._engines, self._keys, replica=rank, origins=self._origins)
        application.router.lifespan_context = self._lifespan
        return application

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Begin and end the application: Ray Serve sends it nothing before this has begun."""
        # Else the first request would wait for the connection and for the tokenizer's import.
        for engine in self._engines.values():
            with contextlib.suppress(EngineDead):
                await engine.connected()
        spare_long_lived_objects()
        rank = serve.get_replica_context().rank.rank
        logger.info("HTTP replica %d is up, process %d", rank, os.getpid())
        yield


def app(arguments: ServeArguments) -> Application:
    """The application by Ray Serve's arguments. Raises ConfigError if the keys cannot be read."""
    replicas = Replicas(
        engines=_engines_of(arguments),
        # Their digests alone leave this process.
        keys=load_keys(arguments.keys),
        num_replicas=arguments.num_replicas,
        drain_s=arguments.drain_s,
        origins=checked_origins(arguments.cors_origins),
    )
    return replicas.application(num_cpus=1)


def _engines_of(arguments: ServeArguments) -> Mapping[str, AsyncLLM | AsyncService]:
    """The handles on what the arguments name. Raises ConfigError if they name too much."""
    if arguments.models:
        if arguments.service is not None or arguments.model_name is not None:
            raise ConfigError(
                "models names services with what clients call their models. Leave out service and "
                "model_name."
            )
        for model, service in arguments.models.items():
            check_name(service, f"the service of {model} in models")
        return {
            model: AsyncService(ServiceName(service), routing=arguments.routing)
            for model, service in arguments.models.items()
        }
    handle: AsyncLLM | AsyncService
    if arguments.service is None:
        handle = AsyncLLM(arguments.engine, arguments.address, arguments.secret_file)
    else:
        check_name(arguments.service, "service")
        handle = AsyncService(ServiceName(arguments.service), routing=arguments.routing)
    return {arguments.model_name or handle.name: handle}
