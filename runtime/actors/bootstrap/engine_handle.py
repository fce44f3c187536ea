"""A running engine as its clients hold it: what they need to connect, and control calls by name."""

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.placement import Placement, release
from raydix.runtime.actors.process import wait_for_exit
from raydix.runtime.actors.supervision.engine_facts import EngineFacts
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind, actor_name

logger = logging.getLogger(__name__)


def typed_error(error: RayError, who: str) -> RaydixError:
    """What a user sees of a failed Ray call: never a bare RayTaskError."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, RaydixError) else RaydixError(f"{who} failed: {cause!r}")
    if isinstance(error, RayActorError | GetTimeoutError):
        return EngineDead(f"{who} is gone: {error}")
    return RaydixError(f"{who}: {error}")


def find_supervisor(engine: str) -> Any:
    """The Ray handle of an engine's Supervisor. Raises EngineDead if this cluster has none."""
    try:
        return ray.get_actor(actor_name(engine, ActorKind.SUPERVISOR), namespace=NAMESPACE)
    except ValueError as error:
        raise EngineDead(f"this Ray cluster runs no engine named {engine}") from error


class EngineHandle:
    """One running engine; control calls go to its Supervisor, which passes them on."""

    def __init__(
        self,
        facts: EngineFacts,
        supervisor: Any,
        placement: Placement | None = None,
        cluster: PrivateCluster | None = None,
    ) -> None:
        """`supervisor`: its Ray handle. The handle of whoever started the engine keeps it alive.

        `placement` and `cluster`: what was made for this engine and ends with it.
        """
        self.name = facts.name
        self.client_address = facts.client_address
        self.secret = facts.secret
        self.model_path = facts.model_path
        self.max_model_len = facts.max_model_len
        self.vocab_size = facts.vocab_size
        self.eos_token_ids = facts.eos_token_ids
        self.facts = facts

        self._supervisor = supervisor
        self._placement = placement
        self._cluster = cluster

    async def call(self, method: str, *arguments: Any) -> Any:
        """Make a control call of the Supervisor, such as `stats` or `flush`. Raises EngineDead."""
        try:
            return await getattr(self._supervisor, method).remote(*arguments)
        except RayError as error:
            raise typed_error(error, f"engine {self.name}") from error

    async def shutdown(self) -> None:
        """Stop the engine; nothing happens if it is gone. Writes to L3 drain for up to 10 s."""
        try:
            if await self._ends_cleanly():
                ray.kill(self._supervisor)
            else:
                logger.info("engine %s ended during its shutdown", self.name)
        except RayActorError:
            logger.info("engine %s had ended before its shutdown", self.name)
        except RayError as error:
            raise typed_error(error, f"engine {self.name}") from error
        finally:
            # A private cluster takes the placement group with it.
            if self._cluster is not None:
                self._cluster.stop()
            elif self._placement is not None:
                release(self._placement)

    async def _ends_cleanly(self) -> bool:
        """Ask the Supervisor to stop the engine. False if its process ended meanwhile.

        Ray may not live to tell of that: a signal to the whole process group ends a private
        cluster, too.
        """
        stopping = asyncio.ensure_future(self._supervisor.shutdown.remote())
        ended = asyncio.create_task(wait_for_exit(self.facts.supervisor_pid))
        try:
            await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                return False

            await stopping
            return True
        finally:
            stopping.cancel()
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
